#!/usr/bin/env bash
# What the project depends on: licences (the allow-list of deny.toml), sources (one registry, no
# git), duplicates. Security advisories need a database from the network and the tool cargo-deny:
# checked where both can be had, else said to be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
list=$(mktemp)
trap 'rm -f "$list"' EXIT

# Licences, of everything that is built for this machine.
cargo tree --workspace --all-features -e normal,build,dev --prefix none -f '{p}|{l}' |
    sed 's/ (\*)$//; s/ (proc-macro)//; s/ ([^|]*)|/|/' | sort -u | grep . >"$list"
awk -F'|' '
    # A flat expression: alternatives of conjunctions.
    function flat(text,    any, i, j, n, m, ors, ands, all) {
        n = split(text, ors, / OR /)
        any = 0
        for (i = 1; i <= n; i++) {
            m = split(ors[i], ands, / AND /)
            all = 1
            for (j = 1; j <= m; j++) {
                gsub(/^ +| +$/, "", ands[j])
                if (ands[j] == "1" || (ands[j] in allowed)) continue
                all = 0
            }
            if (all) any = 1
        }
        return any
    }
    function fits(text,    inner) {
        gsub(/\//, " OR ", text)
        while (match(text, /\([^()]*\)/)) {
            inner = flat(substr(text, RSTART + 1, RLENGTH - 2))
            text = substr(text, 1, RSTART - 1) (inner ? "1" : "0") substr(text, RSTART + RLENGTH)
        }
        return flat(text)
    }
    FILENAME == "deny.toml" {
        if ($0 ~ /^allow = \[/) on = 1
        else if (on && $0 ~ /^\]/) on = 0
        else if (on && match($0, /"[^"]+"/)) allowed[substr($0, RSTART + 1, RLENGTH - 2)] = 1
        next
    }
    { count++
      if ($2 == "" || !fits($2)) {
          printf "error: %s has licence \"%s\", which deny.toml does not allow\n", $1, $2
          bad = 1
      } }
    END { if (!bad) printf "licences: %d packages, all allowed\n", count; exit bad }' \
    deny.toml "$list" >&2 || failed=1

# Sources, of everything in the lock file.
if ! cargo tree --locked --workspace >/dev/null 2>&1; then
    echo "error: Cargo.lock does not fit the manifests: run cargo check and commit it" >&2
    failed=1
fi
awk '/^name = / { name = $3 }
     /^checksum = / { sums++ }
     /^source = / { if ($3 !~ /^"registry\+/) {
                        printf "error: %s does not come from a registry\n", name
                        bad = 1
                    }
                    if (!($3 in seen)) { seen[$3]; sources++ } packages++ }
     END { if (sources > 1) { print "error: packages come from more than one registry"; bad = 1 }
           if (sums != packages) { print "error: packages without a checksum"; bad = 1 }
           said = "sources: %d packages from a registry, with checksums, none from git\n"
           if (!bad) printf said, packages
           exit bad }' \
    Cargo.lock >&2 || failed=1

# Duplicates: allowed, but counted.
duplicates=$(cargo tree --workspace --duplicates --depth 0 --prefix none 2>/dev/null |
    sed 's/ (.*//' | grep -v '^$' | sort -u | tr '\n' ',' | sed 's/,$//; s/,/, /g')
echo "duplicates: ${duplicates:-none}"

# About three minutes of one core, once on a machine.
if ! command -v cargo-deny >/dev/null && [ "${CENOTE_INSTALL_DENY:-}" = 1 ]; then
    echo "installing cargo-deny"
    timeout 360 cargo install --quiet --locked cargo-deny >/dev/null 2>&1 || true
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi
if ! command -v cargo-deny >/dev/null; then
    echo "skipped: cargo-deny and its advisories, because it is not installed"
elif cargo deny --log-level error check bans licenses sources; then
    if cargo deny --log-level off fetch db >/dev/null 2>&1; then
        cargo deny --log-level error check --disable-fetch advisories || failed=1
    else
        echo "skipped: advisories, because their database cannot be reached"
    fi
else
    failed=1
fi
exit "$failed"
