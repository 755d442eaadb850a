#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (default 20) each, as many at a time as there are
# processors, with overflow checks on. FUZZ_SEED makes the inputs those of an earlier run; a failure
# prints the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-20}"
seed=()
if [ -n "${FUZZ_SEED:-}" ]; then seed=(--seed "$FUZZ_SEED"); fi
# As `cargo test --workspace` builds: after that, only the program itself is left to build.
cargo build -q --profile test --workspace --bin cenote-fuzz
printf '%s\0' header log catalog message at-rest journal archive image logged-image wear-image |
    xargs -0 -P "$(nproc)" -I TARGET \
        "${CARGO_TARGET_DIR:-target}/debug/cenote-fuzz" TARGET --seconds "$seconds" "${seed[@]}"
