#!/usr/bin/env bash
# Runs each figure short, to see that it runs and that its rows are written. For numbers worth reading, run
# `cargo run --release -p cenote-bench -- FIGURE --json FILE` on a machine with nothing else to do.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
[ $# -gt 0 ] || set -- puddles-table3 allocators steady open-after-kill
for figure in "$@"; do
    cargo run --release -p cenote-bench -- "$figure" --quick --json "$rows" </dev/null
    for key in figure row system level threads unit median min max runs; do
        grep -q "\"$key\"" "$rows" || { echo "error: $figure: no key \"$key\" in the rows" >&2; exit 1; }
    done
done
