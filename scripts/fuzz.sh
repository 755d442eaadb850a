#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (default 20) each, with overflow checks on. FUZZ_SEED makes the inputs those of
# an earlier run; a failure prints the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-20}"
seed=()
if [ -n "${FUZZ_SEED:-}" ]; then seed=(--seed "$FUZZ_SEED"); fi
cargo build -q -p cenote-fuzz
for target in header log catalog message at-rest journal archive image; do
    cargo run -q -p cenote-fuzz -- "$target" --seconds "$seconds" "${seed[@]}"
done
