#!/usr/bin/env bash
# Real DAX: a virtual machine with emulated persistent memory (ext4, dax=always), where `cenote
# doctor` must find MAP_SYNC and level `power`, the tour must end with an identical index, and a
# program that says which steps it committed is stopped with the whole machine, MACHINE_STOPS times
# (default 4). After each stop the next boot, with another boot id, must find every step that was
# said. The emulated processor has protection keys: the tests of guards run there with them, and
# those of logged heaps with guards on DAX. It has two nodes of memory, for the test of those.
# Caches of the processor outlive such a stop; for missing flushes there is the simulated medium.
# Skipped, with a reason, where QEMU, a kernel or root are not to be had.
set -euo pipefail
cd "$(dirname "$0")/.."
stops="${MACHINE_STOPS:-4}"
target="${CARGO_TARGET_DIR:-target}"
work=$target/machine
skip() {
    echo "skipped: $*"
    exit 0
}

[ "$(uname -m)" = x86_64 ] || skip "the machine is emulated for x86-64 only"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    skip "packages of QEMU and a kernel come through apt-get"
need=()
for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod \
    mkfs.ext4:e2fsprogs; do
    PATH=$PATH:/sbin:/usr/sbin command -v "${tool%%:*}" >/dev/null || need+=("${tool##*:}")
done
PATH=$PATH:/sbin:/usr/sbin
if [ ${#need[@]} -ne 0 ]; then
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
    export DEBIAN_FRONTEND=noninteractive
    install=("${as_root[@]}" apt-get install -y --no-install-recommends "${need[@]}")
    "${install[@]}" >/dev/null 2>&1 ||
        { "${as_root[@]}" apt-get update >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1; } ||
        skip "apt-get cannot install ${need[*]}"
fi

mkdir -p "$work"
if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends:/ {print $2; exit}')
    [ -n "$package" ] || skip "there is no package of a kernel"
    (cd "$work" && apt-get download "$package" >/dev/null 2>&1) ||
        skip "the package $package cannot be downloaded"
    dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
    rm "$work/$package"_*.deb
fi
kernel=$(ls "$work"/kernel/boot/vmlinuz-*)
release=${kernel##*/vmlinuz-}
depmod -b "$work/kernel" "$release"

# As all tests are built: after them, nothing is left to build.
cargo build -q --profile test --workspace --bin cenote --bin cenote-recover
steps=$(cargo test -q --workspace --test sigkill --no-run --message-format=json |
    sed -n '/cenote-collections/s/.*"executable":"\([^"]*sigkill[^"]*\)".*/\1/p')
[ -x "$steps" ] || { echo "error: the test of kills was not built" >&2; exit 1; }
built=$(cargo test -q --workspace --test all --no-run --message-format=json)
guards=$(sed -n '/cenote-protect/s/.*"executable":"\([^"]*\)".*/\1/p' <<<"$built")
heaps=$(sed -n '/cenote-heap/s/.*"executable":"\([^"]*\)".*/\1/p' <<<"$built")
[ -x "$guards" ] && [ -x "$heaps" ] ||
    { echo "error: the tests of guards and heaps were not built" >&2; exit 1; }

# The first file system: a shell, the modules, our programs with their libraries.
root=$work/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
cp scripts/machine/init "$root/init"
cp README.md "$root/words"
for module in nfit nd_pmem; do
    modprobe -d "$work/kernel" -S "$release" --show-depends "$module" | awk '/^insmod/ {print $2}'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file"
done >"$root/modules/order"
cp "$target/debug/cenote" "$target/debug/cenote-recover" "$root/bin/"
objcopy --strip-debug "$steps" "$root/bin/steps" 2>/dev/null || cp "$steps" "$root/bin/steps"
objcopy --strip-debug "$guards" "$root/bin/guards" 2>/dev/null || cp "$guards" "$root/bin/guards"
objcopy --strip-debug "$heaps" "$root/bin/heaps" 2>/dev/null || cp "$heaps" "$root/bin/heaps"
cp "$(command -v mkfs.ext4)" "$root/bin/mkfs.ext4"
for program in "$root"/bin/*; do
    { ldd "$program" 2>/dev/null || true; } |
        awk '/\// {for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i}'
done | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initrd"
rm -rf "$root"

image=$work/memory
rm -f "$image"
truncate -s 512M "$image"

# boot WHAT OUTPUT: starts the machine in the background; its serial line goes to OUTPUT.
boot() {
    qemu-system-x86_64 -machine q35,nvdimm=on -accel tcg,thread=multi -cpu max -smp 2 \
        -m 1G,slots=4,maxmem=16G \
        -object memory-backend-ram,id=ram0,size=512M -numa node,nodeid=0,cpus=0,memdev=ram0 \
        -object memory-backend-ram,id=ram1,size=512M -numa node,nodeid=1,cpus=1,memdev=ram1 \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -object "memory-backend-file,id=pm0,share=on,mem-path=$image,size=512M,align=2M" \
        -device nvdimm,id=nv0,memdev=pm0 \
        -kernel "$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr run=$1" \
        </dev/null >"$2" 2>&1 &
    machine=$!
}
stop() { kill -9 "$machine" 2>/dev/null || true; wait "$machine" 2>/dev/null || true; }
trap stop EXIT

# expect PATTERN OUTPUT: waits until the output has a line with it.
expect() {
    for _ in $(seq 1 1800); do
        if grep -q "machine: failed" "$2" || ! kill -0 "$machine" 2>/dev/null; then break; fi
        if grep -qE "$1" "$2"; then return 0; fi
        sleep 0.1
    done
    if grep -qE "$1" "$2"; then return 0; fi
    echo "error: no line like '$1' in $2, which ends in:" >&2
    tail -n 30 "$2" >&2
    exit 1
}

boot look "$work/look"
expect "machine: end" "$work/look"
stop
tr -d '\r' <"$work/look" >"$work/look.txt"
grep -E '^tour: [0-9]+ words, 3 kills, identical$' "$work/look.txt" ||
    {
        echo "error: the tour on DAX did not end as it should:" >&2
        tail -n 30 "$work/look.txt" >&2
        exit 1
    }
for what in '"dax":true' '"durability":"power"'; do
    tr -d ' \n' <"$work/look.txt" | grep -q "$what" || {
        echo "error: cenote doctor does not say $what" >&2
        cat "$work/look.txt" >&2
        exit 1
    }
done

said=0
for stop in $(seq 1 "$stops"); do
    boot work "$work/serial"
    expect "^done " "$work/serial"
    sleep "0.$((RANDOM % 9 + 1))"
    stop
    found=$(tr -d '\r' <"$work/serial" | sed -n 's/^found \([0-9]*\)$/\1/p')
    # A last line without its end may be cut short: it does not count.
    last=$(head -c -1 "$work/serial" | tr -d '\r' | sed '$d' |
        sed -n 's/^done \([0-9]*\)$/\1/p' | tail -n 1)
    echo "machine $stop: found step $found after $said was said; stopped after $last"
    if [ "$found" -lt "$said" ]; then
        echo "error: steps were said to be committed and are gone" >&2
        exit 1
    fi
    said=${last:-$found}
done
echo "machine: DAX with MAP_SYNC, level power; $stops stops of the whole machine," \
    "nothing lost that was acknowledged"
