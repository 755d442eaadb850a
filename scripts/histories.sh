#!/usr/bin/env bash
# Crash enumeration to its full depth, for a schedule and for releases; about 25 minutes of two
# cores. scripts/test.sh runs the same tests less deep: CONTRIBUTING.md has a table. Prints what was
# visited.
set -euo pipefail
cd "$(dirname "$0")/.."
unset CENOTE_QUICK
others=power_may_fail_anywhere_whatever
histories() { cargo test -p cenote-crashtest --test histories -- "$@"; }
CENOTE_CRASH_DEPTH="${CENOTE_CRASH_DEPTH:-6}" histories --skip "$others"
CENOTE_CRASH_DEPTH="${CENOTE_CRASH_DEPTH_OTHERS:-4}" histories "$others"
# Steps of the heap, of stores and of a daemon's clients, pools with the logged heap, calls that are
# dropped: all of them.
CENOTE_CRASH_DEPTH=all cargo test -p cenote-crashtest --test all -- \
    dropped:: heap_steps:: hosted_clients:: logged_pools:: store_updates:: shadowed::logged:: \
    relaxed:: wear:: wear_pools:: wear_transactions::
# Every bit of a heap's metadata.
CENOTE_FLIPS=all cargo test -p cenote-heap --test all -- \
    flips::every_flipped_bit_of_descriptors --nocapture
# Every page that is lost, in each operation.
CENOTE_ALL=1 cargo test -p cenote --test all -- lost_metadata:: lost_log:: --nocapture
# A million damaged headers of the wear heap, and its processes killed.
CENOTE_WEAR_TRIALS=1000000 CENOTE_WEAR_KILLS=400 cargo test -p cenote-heap --test all -- \
    wear::corrupted:: wear::killed:: --nocapture
