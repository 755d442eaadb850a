# One script a check, under scripts/; this file only names them. Each script also runs alone, without `just`.

default:
    @just --list

# All tests: unit, crash enumeration, SIGKILL loops, documentation examples.
test:
    scripts/test.sh

# The quick loop: the tests of one crate within a minute.
quick CRATE *ARGUMENTS:
    scripts/quick.sh {{CRATE}} {{ARGUMENTS}}

# Crash enumeration, and flipped bits of heaps, to their full depth; `test` goes less deep.
histories:
    scripts/histories.sh

# Format, clippy, layers, sizes.
lint:
    scripts/fmt.sh
    scripts/layers.sh
    scripts/sizes.sh
    scripts/clippy.sh

# API documentation; a broken link is an error.
doc:
    scripts/doc.sh

# Every figure, short; allocators and files beside other systems, where those are installed.
bench:
    scripts/bench.sh

# Fuzz whatever reads bytes that it did not write: headers, logs, catalogs.
fuzz:
    scripts/fuzz.sh

# Lock-free code under every order of its steps, with tiny constants.
loom:
    cargo test -p cenote-heap --test interleavings

# 10^8 operations on one heap: no block is ever handed out twice.
stress:
    cargo test -p cenote-heap --test overlap --test killed

# 10^6 random writes into a logged pool: guarded metadata never change, other damage is found.
stray:
    STRAY_WRITES=1000000 cargo test -p cenote-heap --test all stray:: -- --nocapture

# Kills, losses of power, faults, mutations and races on real stores, five minutes each.
adversary *HARNESSES:
    scripts/adversary.sh {{HARNESSES}}

# In Miri: what works on the simulated medium. About an hour.
miri *SUITES:
    scripts/miri.sh {{SUITES}}

# Licences, sources and duplicates of dependencies; advisories where their database can be reached.
audit:
    scripts/audit.sh

# The main job, on real text.
tour:
    scripts/tour.sh

# A virtual machine with DAX, stopped again and again.
machine:
    scripts/machine.sh

# What CI runs.
ci:
    .ci/run
