#!/usr/bin/env bash
# Brings what the other scripts need: Rust with rustfmt and clippy must be there; a C compiler is
# installed through apt-get if there is none. What only optional steps need is tried, and said to be
# skipped where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then
    # shellcheck disable=SC1091
    . "$HOME/.cargo/env"
fi
if ! command -v cargo >/dev/null; then
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    echo "error: no cargo in PATH; install Rust $version or later with rustup" >&2
    exit 1
fi

for component in rustfmt clippy; do
    if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
        rustup component add "$component"
    fi
done

# apt_install PACKAGE...: as root, or with sudo where that asks no questions.
apt_install() {
    command -v apt-get >/dev/null || return 1
    local run=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        run=(sudo -n)
    fi
    export DEBIAN_FRONTEND=noninteractive
    "${run[@]}" apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    "${run[@]}" apt-get update >/dev/null 2>&1 || return 1
    "${run[@]}" apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1
}

if ! command -v cc >/dev/null; then
    echo "installing a C compiler"
    apt_install gcc libc6-dev || {
        echo "error: no C compiler (cc), and apt-get cannot install one" >&2
        exit 1
    }
fi

if ! [ -e /usr/include/libpmemobj.h ]; then
    echo "installing libpmemobj-dev, for the peers of the benchmarks"
    apt_install libpmemobj-dev ||
        echo "skipped: libpmemobj-dev cannot be installed here; peers will not be built"
fi

if ! command -v mkfs.xfs >/dev/null && ! [ -x /sbin/mkfs.xfs ]; then
    echo "installing xfsprogs, for tests on a file system whose files share blocks"
    apt_install xfsprogs ||
        echo "skipped: xfsprogs cannot be installed here; nor can those tests run"
fi

for tool in strace gdb; do
    if ! command -v "$tool" >/dev/null; then
        echo "installing $tool, for tests that count system calls or follow pointers from outside"
        apt_install "$tool" ||
            echo "skipped: $tool cannot be installed here; nor can those tests run"
    fi
done

cargo --version
rustc --version
