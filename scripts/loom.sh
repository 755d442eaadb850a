#!/usr/bin/env bash
# The heap's lock-free kernel under the model checker: every interleaving of a few threads with tiny constants.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    cargo test -p cenote-heap --release --test loom_kernel "$@"
