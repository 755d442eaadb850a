#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (default 20) each, as many at a time as there are processors, with overflow checks on. FUZZ_SEED makes the inputs those of
# an earlier run; a failure prints the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-20}"
seed=()
if [ -n "${FUZZ_SEED:-}" ]; then seed=(--seed "$FUZZ_SEED"); fi
cargo build -q -p cenote-fuzz
printf '%s\0' header log catalog message at-rest journal archive image |
    xargs -0 -P "$(nproc)" -I TARGET cargo run -q -p cenote-fuzz -- TARGET --seconds "$seconds" "${seed[@]}"
