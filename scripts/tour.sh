#!/usr/bin/env bash
# The main job: builds an index in a pool, is killed again and again, and comes out identical.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo run --release -- tour "$@" </dev/null | tee "$log"
tail -n 1 "$log" | grep -Eq '^tour: [0-9]+ words, [0-9]+ kills, identical$' || {
    echo "error: the tour did not end with 'tour: N words, M kills, identical'" >&2
    exit 1
}
