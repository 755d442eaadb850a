#!/usr/bin/env bash
# API documentation; a broken link or any other warning is an error.
# In the profile of the tests, whose checked libraries are there after clippy.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTDOCFLAGS="-D warnings" exec cargo doc --workspace --no-deps --profile test
