#!/usr/bin/env bash
# Runs the checks of the tree's structure: structure.sh check | sizes | picture. They are built as
# `cargo test --workspace` builds them, so nothing is built twice.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --profile test --workspace --bin cenote-structure
exec "${CARGO_TARGET_DIR:-target}/debug/cenote-structure" "$@"
