#!/usr/bin/env bash
# All tests, by the command that the README names, with what they print; ends with what was skipped and why, and the sums over all test binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
cargo test --workspace --no-fail-fast -- --show-output 2>&1 | tee "$log" || status=$?
grep '^skipped:' "$log" | sort | uniq -c || true
awk '/^test result:/ {
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
        if ($i ~ /^ignored/) ignored += $(i - 1)
    }
}
END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored; exit passed == 0 }' "$log" || {
    echo "error: no test has run" >&2
    exit 1
}
exit "$status"
