#!/usr/bin/env bash
# The formatting is rustfmt's.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo fmt --all --check
