#!/usr/bin/env bash
# Attacks real stores: every harness of cenote-adversary for ADVERSARY_SECONDS (default 300), or
# those that are named. Each ends with a line of its counts, and with the seed and the command that
# repeat what it has found. ADVERSARY_SEED makes the rounds those of an earlier run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${ADVERSARY_SECONDS:-300}"
seed=()
if [ -n "${ADVERSARY_SEED:-}" ]; then seed=(--seed "$ADVERSARY_SEED"); fi
harnesses=("$@")
if [ ${#harnesses[@]} -eq 0 ]; then harnesses=(kill clients others power faults mutate races); fi
# With assertions and overflow checks, as tests are built.
cargo test -q --workspace --test short --no-run
status=0
for harness in "${harnesses[@]}"; do
    "${CARGO_TARGET_DIR:-target}/debug/cenote-adversary" "$harness" \
        --thorough --seconds "$seconds" "${seed[@]}" || status=1
done
exit "$status"
