#!/usr/bin/env bash
# All tests, by the command that the README names, with what they print. It ends with what was
# skipped and why, the sums over all test programs, and what each failed test printed (the first 40
# lines of each). Some programs run beside the others: run_test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
# All rounds of long tests, whatever the environment says.
unset CENOTE_QUICK
log=$(mktemp)
CENOTE_TEST_LANE=$(mktemp -d)
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
CENOTE_TEST_RUNNER=CARGO_TARGET_${host}_RUNNER
export CENOTE_TEST_LANE CENOTE_TEST_RUNNER "$CENOTE_TEST_RUNNER=$PWD/scripts/run_test.sh"
# The process groups of the lane, if this ends early.
end() {
    for pid in "$CENOTE_TEST_LANE"/*.pid; do
        if [ -e "$pid" ] && ! [ -s "${pid%.pid}.status" ]; then
            kill -- "-$(cat "$pid")" 2>/dev/null || true
        fi
    done
    rm -rf "$log" "$CENOTE_TEST_LANE"
}
trap end EXIT
status=0
# First those that run beside the others: they begin while the rest is built, and fill what linking
# and waiting leave of the processors.
cargo test --workspace --no-fail-fast --test histories --test interleavings -- --show-output 2>&1 |
    tee "$log" || status=$?
cargo test --workspace --no-fail-fast -- --show-output 2>&1 | tee -a "$log" || status=$?
for beside in "$CENOTE_TEST_LANE"/*.log; do
    [ -e "$beside" ] || continue
    program=${beside%.log}
    while ! [ -s "$program.status" ] && kill -0 "$(cat "$program.pid")" 2>/dev/null; do
        sleep 0.2
    done
    tee -a "$log" <"$beside"
    if [ "$(cat "$program.status" || echo none)" != 0 ]; then
        echo "error: $(head -n 1 "$beside"): it failed" >&2
        status=1
    fi
done
grep '^skipped:' "$log" | sort | uniq -c || true
awk '/^test result:/ {
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
        if ($i ~ /^ignored/) ignored += $(i - 1)
    }
}
END {
    printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored
    exit passed == 0
}' "$log" || {
    echo "error: no test has run" >&2
    exit 1
}
if [ "$status" != 0 ]; then
    awk '/^failures:$/ { failed = 1 }
/^(successes:$|test result:)/ { failed = 0 }
/^---- / { lines = 0 }
/^ +[0-9]+: / || /^ +at / { next }
failed && ++lines <= 40 { print substr($0, 1, 300) }
/^error:/ { print substr($0, 1, 300) }' "$log"
    # Last, and short: reports of a run keep its end.
    echo "why tests failed:"
    awk '/^failures:$/ { failed = 1 }
/^(successes:$|test result:)/ { failed = 0 }
failed && /^---- .* stdout ----$/ { print $2 }
failed && /panicked at/ { print "  " $0; said = 2; next }
said-- > 0 && failed { print "    " substr($0, 1, 400) }' "$log" | head -60
fi
exit "$status"
