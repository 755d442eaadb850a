#!/usr/bin/env bash
# Runs in Miri what works on the simulated medium: no undefined behaviour, no data race. Takes
# about an hour of one core: Miri needs minutes for what takes the processor 20 ms.
#   scripts/miri.sh          every suite
#   scripts/miri.sh NAME...  these: sys medium log heap collections
# A test names the padding of its values: Miri cannot know that memory gives it a value
# (cenote-sys, bytes).
# Needs rustup, and the network once: Miri is a component of nightly toolchains. Those of October
# 2026 refuse futex calls of parking_lot_core by the type of a pointer, which no program observes:
# an earlier one is taken. MIRI_TOOLCHAIN names another.
set -euo pipefail
cd "$(dirname "$0")/.."
toolchain=${MIRI_TOOLCHAIN:-nightly-2026-05-01}

if ! cargo "+$toolchain" miri --version >/dev/null 2>&1; then
    if ! command -v rustup >/dev/null ||
        ! rustup toolchain install "$toolchain" --profile minimal --component miri,rust-src \
            >/dev/null 2>&1; then
        echo "skipped: Miri cannot be installed here"
        exit 0
    fi
fi
# rustix makes system calls by assembly unless told otherwise. A word is accessed in halves and as a
# whole (futexes): Miri's emulation of weak memory cannot do that. All memory of a simulation is one
# allocation with thousands of atomics. Were each byte beside an atomic looked at by itself, as by
# default where a shared reference leads to one, the suite of collections would take hours.
export RUSTFLAGS="--cfg rustix_use_libc"
export MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-tree-borrows-no-precise-interior-mut
    -Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks
    -Zmiri-disable-weak-memory-emulation ${MIRIFLAGS:-}"

suite() {
    echo "== $1"
    case $1 in
        # What the kernel does with other memory, Miri does not know.
        sys) cargo "+$toolchain" miri test -p cenote-sys --lib -- futex:: fault_queue:: ;;
        log)
            cargo "+$toolchain" miri test -p cenote-log --test all -- process:: model::
            ;;
        # Arithmetic without unsafe code takes hours, and Miri cannot fork.
        heap)
            cargo "+$toolchain" miri test -p cenote-heap --lib -- --skip class:: --skip a_child \
                --skip reciprocals --skip a_window_lies
            ;;
        medium) cargo "+$toolchain" miri test -p cenote-medium --lib -- sim:: ;;
        # Each test in a process of its own: what simulations mapped stays, gigabytes for all.
        collections)
            local tests=(cargo "+$toolchain" miri test -p cenote-collections --test interpreted --)
            local name
            for name in $("${tests[@]}" --list | sed -n 's/: test$//p'); do
                "${tests[@]}" --exact "$name"
            done
            ;;
        *)
            echo "error: no suite $1; there are sys, medium, log, heap, collections" >&2
            return 2
            ;;
    esac
}

suites=("$@")
[ $# -gt 0 ] || suites=(sys medium log heap collections)
for name in "${suites[@]}"; do suite "$name"; done
