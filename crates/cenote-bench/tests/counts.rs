//! What the primitives cost in flushes, fences and streamed bytes: exact, on every machine.
//!
//! The counts are of the steady state: the range that finished the transaction before is flushed with the first fence of the next
//! ("lazy", see `cenote-tx`), and no superblock has to be taken.

use cenote::{Durability, Pool, Store, TypeId, raw};
use cenote_bench::Place;
use cenote_bench::place::Settings;
use cenote_medium::counters::{self, Counts};

/// Counts of the second of two equal operations.
fn steady(mut operation: impl FnMut()) -> (u64, u64, u64) {
    operation();
    let before = counters::snapshot();
    operation();
    let Counts { flushes, fences, streamed_bytes, .. } = counters::snapshot() - before;
    (flushes, fences, streamed_bytes)
}

/// Flushed lines, fences, streamed bytes, by name of the primitive.
fn measure(durability: Durability) -> Vec<(&'static str, (u64, u64, u64))> {
    let settings = Settings::default();
    let place = Place::open(&settings, durability).expect("a store");
    let (store, pool): (&Store, &Pool) = (&place.store, &place.pool);
    // SAFETY: here and below: every transaction is ended in its closure; memory that is written is a live block of this test alone, logged before.
    let page = unsafe {
        let mut tx = raw::begin(store).expect("begin");
        let page = tx.alloc(pool.raw_heap(), 8192, 64, TypeId::UNTYPED).expect("alloc");
        tx.commit().expect("commit");
        page.as_ptr()
    };
    let add = |ranges: &[(usize, usize)], at_once: bool| {
        // SAFETY: as above.
        unsafe {
            let mut tx = raw::begin(store).expect("begin");
            if at_once {
                let ranges: Vec<_> = ranges.iter().map(|&(at, len)| (page.add(at).cast_const(), len)).collect();
                tx.add_all(&ranges).expect("add");
            }
            for &(at, len) in ranges {
                tx.add(page.add(at), len).expect("add");
                page.add(at).write_bytes(1, len);
            }
            tx.commit().expect("commit");
        }
    };
    let alloc = |size| {
        // SAFETY: as above.
        unsafe {
            let mut tx = raw::begin(store).expect("begin");
            let block = tx.alloc(pool.raw_heap(), size, 8, TypeId::UNTYPED).expect("alloc");
            tx.commit().expect("commit");
            block.as_ptr() as u64
        }
    };
    let free = |block| {
        // SAFETY: as above; nobody uses the block.
        unsafe {
            let mut tx = raw::begin(store).expect("begin");
            tx.free(pool.raw_heap(), block).expect("free");
            tx.commit().expect("commit");
        }
    };
    let set = || {
        // SAFETY: as above.
        unsafe {
            let mut tx = raw::begin(store).expect("begin");
            tx.set(page, [1u8; 8].as_ptr(), 8).expect("set");
            tx.commit().expect("commit");
        }
    };
    let words: Vec<_> = (0..64).map(|k| (k * 64, 8)).collect();
    // SAFETY: as above.
    let nop = steady(|| unsafe { raw::begin(store).expect("begin").commit().expect("commit") });
    let mut blocks = Vec::new();
    let mut freed = vec![alloc(16), alloc(16)];
    vec![
        ("nop", nop),
        ("add 8", steady(|| add(&[(0, 8)], false))),
        ("add 8 twice", steady(|| add(&[(0, 8), (0, 8)], false))),
        ("add 8 of one line, 2", steady(|| add(&[(0, 8), (8, 8)], true))),
        ("add 8 of 64", steady(|| add(&words, false))),
        ("add 8 of 64 at once", steady(|| add(&words, true))),
        ("add 4096", steady(|| add(&[(0, 4096)], false))),
        ("set 8", steady(set)),
        ("alloc 8", steady(|| blocks.push(alloc(8)))),
        ("free", steady(|| freed.pop().into_iter().for_each(free))),
    ]
}

#[test]
fn nothing_is_flushed_or_fenced_at_process_level() {
    for (name, counts) in measure(Durability::Process) {
        assert_eq!(counts, (0, 0, 0), "{name}");
    }
}

#[test]
fn flushes_fences_and_logged_bytes_at_power_level_are_exactly_these() {
    let expected = [
        ("nop", (0, 0, 0)),
        // The line and the range before; entry and seal.
        ("add 8", (2, 2, 128)),
        ("add 8 twice", (2, 2, 128)),
        ("add 8 of one line, 2", (2, 2, 192)),
        ("add 8 of 64", (65, 65, 65 * 64)),
        ("add 8 of 64 at once", (65, 2, 65 * 64)),
        ("add 4096", (65, 2, 65 * 64 + 64)),
        // The line, the range as "committed", and the range before.
        ("set 8", (3, 2, 128)),
        // Mark, fresh block and seal are logged.
        ("alloc 8", (2, 1, 192)),
        ("free", (1, 1, 128)),
    ];
    assert_eq!(measure(Durability::Power), expected);
}
