#!/usr/bin/env bash
# Builds the adapters to other systems, which nothing else needs, where their libraries are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d crates/cenote-bench-peers ]; then
    echo "skipped: there is no cenote-bench-peers yet"
elif [ ! -e /usr/include/libpmemobj.h ]; then
    echo "skipped: libpmemobj-dev is not installed"
else
    cargo build --release -p cenote-bench-peers --all-features
fi
