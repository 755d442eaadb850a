#!/usr/bin/env bash
# The overlap checker for 10^8 operations, and 2,000 kills of processes that share a heap: a few minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test -p cenote-heap --release --test overlap --test killed -- --ignored "$@"
