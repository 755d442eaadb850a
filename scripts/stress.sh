#!/usr/bin/env bash
# The overlap checker for 10^8 operations, and 2,000 kills of processes that share a heap: a few minutes. Built as for all tests (the whole workspace is named, so that nothing is built twice):
# the heap is optimised there, and its assertions are on.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace --test overlap --test killed -- --ignored "$@"
