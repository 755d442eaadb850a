#!/usr/bin/env bash
# Lengths of files, functions and lines, and words, compared with scripts/sizes.txt, which only
# shrinks. `sizes.sh lower` lowers that list, `sizes.sh list` prints what is over a limit today.
set -euo pipefail
cd "$(dirname "$0")/.."
exec scripts/structure.sh sizes "$@"
