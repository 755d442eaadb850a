#!/usr/bin/env bash
# Draws the crates, from their manifests, into ARCHITECTURE.md.
set -euo pipefail
cd "$(dirname "$0")/.."
exec scripts/structure.sh picture
