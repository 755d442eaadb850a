#!/usr/bin/env bash
# Draws the crates, from their manifests, into ARCHITECTURE.md.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --quiet -p cenote-structure -- picture
