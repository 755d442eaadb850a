#!/usr/bin/env bash
# The overlap checker for 10^8 operations: about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test -p cenote-heap --release --test overlap -- --ignored "$@"
