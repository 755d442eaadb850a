#!/usr/bin/env bash
# The rules of ARCHITECTURE.md that a compiler does not check:
#   1. a crate depends on crates of lower layers only (tests may look up), and on cenote-testkit
#      for its tests alone; the harness cenote-adversary, which does not ship, may use that too;
#   2. assembly and raw system calls are in cenote-sys only;
#   3. what replay needs (layout, medium, log, journal, store) knows nothing of heaps and
#      transactions: it follows from 1;
#   4. no test is left out: of a crate that names its test programs, each file of tests is one of
#      them or a module of tests/all.rs, and a library or program that says `test = false` has no
#      test inside;
#   5. modules of a crate form no import cycle, except those that scripts/cycles.txt names; that
#      list only shrinks;
#   6. ARCHITECTURE.md draws the crates as their manifests have them (scripts/picture.sh);
#   7. every "decision N" in the tree has one entry in docs/decisions, and its README lists it;
#   8. page rights change in cenote-protect alone, beside cenote-sys and the simulated medium;
#   9. a module `kernel` needs no other module of its crate, and names nothing of cenote-atrest and
#      cenote-shadow, but for the key in options and the causes of errors.
#  10. layouts of heaps are known to the heaps: what moves, archives, maps or hosts pools names none
#      of their structures (crates/cenote-structure/src/heaps.rs lists both).
set -euo pipefail
cd "$(dirname "$0")/.."

order=(
    cenote-structure cenote-testkit cenote-sys cenote-layout cenote-archive
    cenote-medium cenote-groups cenote-protect cenote-log cenote-journal cenote-atrest cenote-shadow
    cenote-proto cenote-store cenote-recover cenote-object cenote-heap cenote-relocate cenoted
    cenote-tx cenote-derive cenote-hostile-macros cenote cenote-collections
    cenote-crashtest cenote-cli cenote-bench cenote-fuzz cenote-adversary
)
failed=0

rank() {
    local i
    for i in "${!order[@]}"; do
        if [ "${order[$i]}" = "$1" ]; then echo "$i"; return; fi
    done
    echo -1
}

for manifest in crates/*/Cargo.toml; do
    crate=$(basename "$(dirname "$manifest")")
    own=$(rank "$crate")
    if [ "$own" -lt 0 ]; then
        echo "error: $crate has no layer: add it to scripts/layers.sh and ARCHITECTURE.md" >&2
        failed=1
        continue
    fi
    # Names in [dependencies], [build-dependencies] and [target.*.dependencies], not in
    # [dev-dependencies].
    used=$(awk '/^\[/ { on = ($0 ~ /dependencies/ && $0 !~ /dev-dependencies/)
                        if (on && match($0, /dependencies\.[a-z-]+/)) {
                            print substr($0, RSTART + 13, RLENGTH - 13)
                        }
                        next }
                on && match($0, /^cenote[a-z-]*/) { print substr($0, RSTART, RLENGTH) }' \
        "$manifest")
    for other in $used; do
        case $other in cenote*) ;; *) continue ;; esac
        if [ "$other" = cenote-testkit ] && [ "$crate" != cenote-adversary ]; then
            echo "error: $crate depends on $other, which is for [dev-dependencies]" >&2
            failed=1
        fi
        if [ "$(rank "$other")" -ge "$own" ]; then
            echo "error: $crate depends on $other, which is not below it" >&2
            failed=1
        fi
    done
done

raw='\b(core::arch::|std::arch::)?(asm|global_asm)!\s*\(|libc::syscall|_mm_(clflush|sfence|mfence)'
if grep -rnE "$raw" --include='*.rs' crates |
    grep -v '^crates/cenote-sys/' | grep -vE ':[0-9]+:\s*//'; then
    echo "error: assembly or raw system calls outside cenote-sys" >&2
    failed=1
fi
for manifest in $(grep -l '^autotests = false' crates/*/Cargo.toml); do
    dir=$(dirname "$manifest")
    for file in "$dir"/tests/*.rs; do
        name=$(basename "$file" .rs)
        grep -q "^path = \"tests/$name.rs\"" "$manifest" ||
            grep -qs "^mod $name;" "$dir/tests/all.rs" || {
            echo "error: $file is in no test program: add it to $dir/tests/all.rs" >&2
            failed=1
        }
    done
done
for manifest in $(grep -l '^test = false' crates/*/Cargo.toml); do
    src=$(dirname "$manifest")/src
    # A program beside a library is its main file and the modules that this names.
    if awk '/^\[/ { lib = ($0 == "[lib]") }
            lib && /^test = false/ { found = 1 }
            END { exit !found }' "$manifest" || ! [ -e "$src/lib.rs" ]; then
        untested=("$src")
    else
        mapfile -t untested < <(sed -n "s#^mod \([a-z_]*\);#$src/\1.rs#p" "$src/main.rs")
        untested+=("$src/main.rs")
    fi
    if grep -rn '#\[test\]' "${untested[@]}"; then
        echo "error: $manifest says test = false, so these would not run" >&2
        failed=1
    fi
done

scripts/structure.sh check || failed=1

present=$(ls -d crates/*/ | wc -l)
[ "$failed" -eq 0 ] && echo "layers: ${#order[@]} known, $present present, none looks up"
exit "$failed"
