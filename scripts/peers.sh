#!/usr/bin/env bash
# Builds the adapters to other systems, which nothing else needs, as far as what they need is installed, and runs the figure of allocators short.
set -euo pipefail
cd "$(dirname "$0")/.."
features=mimalloc,lmdb
if command -v make >/dev/null; then features+=,jemalloc; else echo "skipped: jemalloc, which needs make"; fi
if [ -e /usr/include/libpmemobj.h ]; then
    features+=,libpmemobj
else
    echo "skipped: libpmemobj, whose libpmemobj-dev is not installed"
fi
cargo run --release -p cenote-bench-peers --features "$features" -- allocators --quick </dev/null
cargo run --release -p cenote-bench-peers --features "$features" -- pmo-files --quick --system lmdb </dev/null
