#!/usr/bin/env bash
# The quick loop: the tests of one crate after an edit in it, within a minute. Long tests do an
# eighth of their rounds; scripts/test.sh does all. What follows the crate goes to `cargo test`.
# Usage: quick.sh CRATE [--test PROGRAM] [NAME]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    echo "usage: scripts/quick.sh CRATE [--test PROGRAM] [NAME]" >&2
    exit 2
fi
export CENOTE_QUICK=1
if [ "$1" = cenoted ]; then
    # Its tests wait for other processes, and some for seconds by themselves.
    export RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}"
fi
exec cargo test --profile quick -p "$@"
