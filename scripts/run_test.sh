#!/usr/bin/env bash
# run_test.sh PROGRAM ARGUMENT...: runs one test program; scripts/test.sh names it to Cargo as
# runner.
#
# Crash enumeration takes most of the time of all tests. It counts, and measures no time. Its
# programs go into a lane beside the others, at the lowest priority, so that they take what the
# others leave of the processors while those wait, link or sleep. They do not wait for each other:
# the last test of one would leave a processor without work. Each runs four tests at once, because
# its longest ones take as long as the other programs together.
# The lane is the directory CENOTE_TEST_LANE. Of program N: N.log, N.pid of its process group, and
# N.status when it has ended.
set -euo pipefail
unset "$CENOTE_TEST_RUNNER" CENOTE_TEST_RUNNER
case ${CARGO_PKG_NAME:-}/$(basename "$1") in
    cenote-crashtest/all-* | cenote-crashtest/histories-* | cenote-heap/interleavings-*) ;;
    # It compiles programs, and all crates below them once more: optimising those took three times
    # as long as all the rest of it.
    cenote-hostile-macros/ui-*)
        CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=0 exec "$@"
        ;;
    # Its tests wait for other processes, and some for seconds by themselves.
    cenoted/it-*)
        RUST_TEST_THREADS=4 exec "$@"
        ;;
    *) exec "$@" ;;
esac
lane=$CENOTE_TEST_LANE
if grep -qsx "beside the others: $1" "$lane"/*.log; then
    # It was started before all others.
    exit 0
fi
number=$(find "$lane" -name '*.log' | wc -l)
log=$lane/$number.log
echo "beside the others: $1" | tee "$log"
set -m
(
    status=0
    TIMEFORMAT='processor time: %U s, in the kernel %S s; %R s from its start'
    time RUST_TEST_THREADS=4 nice -n 19 "$@" || status=$?
    echo "$status" >"$lane/$number.status"
) >>"$log" 2>&1 </dev/null &
echo "$!" >"$lane/$number.pid"
