#!/usr/bin/env bash
# Runs figures that other systems are part of, short, as far as what those need is installed, to see
# that they run and that rows are written. (The tests run every figure, alone.) For numbers worth
# reading, run `cargo run --release -p cenote-bench --features FEATURES -- FIGURE --json FILE` on a
# machine with nothing else to do.
set -euo pipefail
cd "$(dirname "$0")/.."
features=mimalloc,lmdb
if command -v make >/dev/null; then
    features+=,jemalloc
else
    echo "skipped: jemalloc, which needs make"
fi
if [ -e /usr/include/libpmemobj.h ]; then
    features+=,libpmemobj
else
    echo "skipped: libpmemobj, whose libpmemobj-dev is not installed"
fi
# As the tests are built, with the program: after them, only the peers and what has their features
# are left to build.
cargo test -q --workspace --test figures --no-run \
    --features "cenote-bench/${features//,/,cenote-bench/}"
programs=${CARGO_TARGET_DIR:-target}/debug

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
figures=("$@")
[ $# -gt 0 ] || figures=(puddles-table3 allocators nvmalloc-table2 nvmalloc-table3)
for figure in "${figures[@]}"; do
    "$programs/cenote-bench" "$figure" --quick --json "$rows" </dev/null
    for key in figure row system level threads unit median min max runs; do
        grep -q "\"$key\"" "$rows" || {
            echo "error: $figure: no key \"$key\" in the rows" >&2
            exit 1
        }
    done
done
[ $# -eq 0 ] || exit 0
# The peers are in the first one: they are the same in all.
systems=()
for figure in poseidon6 poseidon7 poseidon8 poseidon9; do
    "$programs/cenote-bench" "$figure" --quick "${systems[@]}" --json "$rows" </dev/null
    systems=(--system logged)
    for level in process power; do
        grep "\"system\":\"logged\",\"level\":\"$level\"" "$rows" >/dev/null || {
            echo "error: $figure: no row of the logged heap at $level" >&2
            exit 1
        }
    done
done
"$programs/cenote-bench" pmo-files --quick --system lmdb </dev/null
# The attacks must work where they are known to: else it says nothing that they do nothing here.
if [ "${features%libpmemobj}" != "$features" ]; then
    "$programs/cenote-bench" poseidon3 --json "$rows" </dev/null
    for attack in overlap leak; do
        grep "\"row\":\"$attack\",\"system\":\"libpmemobj\"" "$rows" |
            grep -q '"median":[1-9]' || {
            echo "error: poseidon3: $attack did nothing to libpmemobj" >&2
            exit 1
        }
    done
fi
