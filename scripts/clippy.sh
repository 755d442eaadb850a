#!/usr/bin/env bash
# No warning in any target: undocumented unsafe blocks and missing docs are among them (Cargo.toml,
# [workspace.lints]). In the profile of the tests: with another, Cargo checks each library twice.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo clippy --workspace --all-targets --profile test -- -D warnings
