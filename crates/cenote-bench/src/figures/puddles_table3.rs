//! Table 3 of the Puddles paper: what the primitives cost.
//!
//! Unit: nanoseconds an operation. Inside the timed loop is exactly what the table says, once an
//! operation; values written are other ones each time. All of it is one thread. System `cenote` is
//! the raw interface ([`cenote::raw::begin`]), which like libpmemobj's checks no pointers and takes
//! no locks; `cenote (safe)` is [`cenote::Pool::write`], which does.
//!
//! The rows, each with its operation:
//!
//! * `tx_nop`: begin and commit a transaction.
//! * `tx_add_8`: a transaction: add (undo-log) an aligned range of 8 bytes, the same each time;
//!   write it; commit.
//! * `tx_add_8_of_64`: a 64th of a transaction that adds and writes, one after the other, 64
//!   aligned ranges of 8 bytes, 64 bytes apart; commit included.
//! * `tx_add_8_of_64_batch`: the same with one call that adds all 64 ranges before the first is
//!   written (raw interface of Cenote only).
//! * `tx_add_4096`: a transaction: add 4 KiB, aligned to a cache line, the same each time; write
//!   all of them; commit.
//! * `tx_add_4096_unwritten`: the same without writing to them.
//! * `malloc_8`, `malloc_4096`: a transaction that allocates one block of that size, and neither
//!   writes to it nor attaches it to anything.
//! * `malloc_free_8`, `malloc_free_4096`: a transaction that allocates a block, then one that frees
//!   it.
//!
//! The blocks of the `malloc` rows are freed, outside the timed parts, 1,024 at a time. The safe
//! interface always writes what it allocates: a zeroed value of that size.

use crate::case::{Case, Failure, Sample, Stopwatch, time_each};
use crate::figures::figure::{Body, Figure};
use crate::place::{BenchPlace, Settings};
use cenote::{Persist, Ptr, TypeId, field, raw};
use std::hint::black_box;
use std::ptr::NonNull;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "puddles-table3",
    title: "Puddles, Table 3: latency of primitives",
    body: Body::Cases(cases),
};

/// The rows that every system has.
pub const ROWS: [&str; 9] = [
    "tx_nop",
    "tx_add_8",
    "tx_add_8_of_64",
    "tx_add_4096",
    "tx_add_4096_unwritten",
    "malloc_8",
    "malloc_4096",
    "malloc_free_8",
    "malloc_free_4096",
];

/// Ranges that `tx_add_8_of_64` adds.
pub const RANGES: usize = 64;

/// Blocks that the `malloc` rows hold at most.
pub const BATCH: usize = 1024;

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::Line")]
#[repr(C, align(64))]
struct Line {
    value: u64,
    rest: [u64; 7],
}

#[derive(Persist)]
#[persist(name = "cenote-bench::Page")]
#[repr(C, align(64))]
struct Page {
    lines: [Line; RANGES],
}

const _: () = assert!(size_of::<Page>() == 4096);

const EMPTY: Page = Page { lines: [Line { value: 0, rest: [0; 7] }; RANGES] };

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for place in BenchPlace::both(settings)? {
        let page = place.pool.write(|tx| -> cenote::Result<Ptr<Page>> {
            let page = tx.alloc(EMPTY)?;
            tx.set_root(page)?;
            Ok(page)
        })?;
        cases.extend(raw_cases(&place, page));
        cases.extend(safe_cases(&place, page));
    }
    Ok(cases)
}

/// A case of the raw interface from what one operation does.
fn raw_case(
    place: &Rc<BenchPlace>,
    row: &'static str,
    mut operation: impl FnMut(&BenchPlace, u64) -> cenote::Result<()> + 'static,
) -> Case {
    let place = place.clone();
    Case::new(row, "cenote", place.level, move |count| {
        time_each(count, |i| Ok(operation(black_box(&place), i)?))
    })
}

fn raw_cases(place: &Rc<BenchPlace>, page: Ptr<Page>) -> Vec<Case> {
    let start = page.as_ptr().cast::<u8>();
    let line = move |i: usize| start.wrapping_add(i % RANGES * 64).cast::<u64>();
    vec![
        // SAFETY: here and below: the transaction is ended in the same closure, and the page is a
        // live block that only this thread uses.
        raw_case(place, "tx_nop", |place, _| unsafe { raw::begin(&place.store)?.commit() }),
        // SAFETY: as above.
        raw_case(place, "tx_add_8", move |place, i| unsafe {
            let mut tx = raw::begin(&place.store)?;
            tx.add(start, 8)?;
            start.cast::<u64>().write_volatile(i);
            tx.commit()
        }),
        {
            let place = place.clone();
            Case::new("tx_add_8_of_64", "cenote", place.level, move |count| {
                // SAFETY: as above.
                of_64(count, |i| unsafe {
                    let mut tx = raw::begin(black_box(&place.store))?;
                    for k in 0..RANGES {
                        tx.add(line(k).cast(), 8)?;
                        line(k).write_volatile(i);
                    }
                    tx.commit()
                })
            })
        },
        {
            let place = place.clone();
            Case::new("tx_add_8_of_64_batch", "cenote", place.level, move |count| {
                let ranges: Vec<(*const u8, usize)> =
                    (0..RANGES).map(|k| (line(k).cast_const().cast(), 8)).collect();
                // SAFETY: as above.
                of_64(count, |i| unsafe {
                    let mut tx = raw::begin(black_box(&place.store))?;
                    tx.add_all(&ranges)?;
                    for k in 0..RANGES {
                        line(k).write_volatile(i);
                    }
                    tx.commit()
                })
            })
        },
        // SAFETY: as above.
        raw_case(place, "tx_add_4096", move |place, i| unsafe {
            let mut tx = raw::begin(&place.store)?;
            tx.add(start, 4096)?;
            black_box(start).write_bytes(i as u8, 4096);
            tx.commit()
        }),
        // SAFETY: as above.
        raw_case(place, "tx_add_4096_unwritten", move |place, _| unsafe {
            let mut tx = raw::begin(&place.store)?;
            tx.add(start, 4096)?;
            tx.commit()
        }),
        raw_malloc(place, "malloc_8", 8),
        raw_malloc(place, "malloc_4096", 4096),
        raw_malloc_free(place, "malloc_free_8", 8),
        raw_malloc_free(place, "malloc_free_4096", 4096),
    ]
}

/// Times transactions of 64 operations each.
fn of_64(
    count: u64,
    mut transaction: impl FnMut(u64) -> cenote::Result<()>,
) -> Result<Sample, Failure> {
    let transactions = count.div_ceil(RANGES as u64);
    let mut watch = Stopwatch::new();
    watch
        .time(transactions * RANGES as u64, || (0..transactions).try_for_each(&mut transaction))?;
    Ok(watch.sample())
}

/// A transaction with one allocation.
///
/// # Safety
/// The thread is in no transaction.
unsafe fn alloc(place: &BenchPlace, size: u64) -> cenote::Result<NonNull<u8>> {
    // SAFETY: ended below; the heap is of the same store, writable, and outlives the transaction.
    unsafe {
        let mut tx = raw::begin(&place.store)?;
        let block = tx.alloc(place.pool.raw_heap(), size, 8, TypeId::UNTYPED)?;
        tx.commit()?;
        Ok(block)
    }
}

/// A transaction with one free.
///
/// # Safety
/// The thread is in no transaction, and no code uses the block.
unsafe fn free(place: &BenchPlace, block: NonNull<u8>) -> cenote::Result<()> {
    // SAFETY: as in `alloc`.
    unsafe {
        let mut tx = raw::begin(&place.store)?;
        tx.free(place.pool.raw_heap(), block.as_ptr() as u64)?;
        tx.commit()
    }
}

fn raw_malloc(place: &Rc<BenchPlace>, row: &'static str, size: u64) -> Case {
    let place = place.clone();
    Case::new(row, "cenote", place.level, move |count| {
        in_batches(
            count,
            // SAFETY: no transaction is open here; no code uses the blocks.
            |_| unsafe { alloc(black_box(&place), size) },
            // SAFETY: as above.
            |block| unsafe { free(&place, block) },
        )
    })
}

fn raw_malloc_free(place: &Rc<BenchPlace>, row: &'static str, size: u64) -> Case {
    raw_case(place, row, move |place, _| {
        // SAFETY: no transaction is open here; no code uses the block.
        unsafe {
            let block = alloc(place, size)?;
            free(place, block)
        }
    })
}

/// Times `make`, [`BATCH`] times at once at most, and undoes it by `unmake` outside the timed part.
pub(crate) fn in_batches<T, E: Into<Failure>>(
    count: u64,
    mut make: impl FnMut(u64) -> Result<T, E>,
    mut unmake: impl FnMut(T) -> Result<(), E>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let mut made = Vec::with_capacity(BATCH);
    while watch.operations() < count {
        let batch = (count - watch.operations()).min(BATCH as u64);
        watch
            .time(batch, || -> Result<(), E> {
                for i in 0..batch {
                    made.push(make(i)?);
                }
                Ok(())
            })
            .map_err(Into::into)?;
        for one in made.drain(..) {
            unmake(one).map_err(Into::into)?;
        }
    }
    Ok(watch.sample())
}

const SAFE: &str = "cenote (safe)";

fn safe_case(
    place: &Rc<BenchPlace>,
    row: &'static str,
    mut operation: impl FnMut(&BenchPlace, u64) -> cenote::Result<()> + 'static,
) -> Case {
    let place = place.clone();
    Case::new(row, SAFE, place.level, move |count| {
        time_each(count, |i| Ok(operation(black_box(&place), i)?))
    })
}

fn safe_cases(place: &Rc<BenchPlace>, page: Ptr<Page>) -> Vec<Case> {
    let lines = field!(Page, lines);
    let first: Vec<_> = (0..RANGES)
        .filter_map(|k| lines.element(k))
        .map(|line| line.then(field!(Line, value)))
        .collect();
    let value = first[0];
    vec![
        safe_case(place, "tx_nop", |place, _| place.pool.write(|_| Ok(()))),
        safe_case(place, "tx_add_8", move |place, i| place.pool.write(|tx| tx.set(page, value, i))),
        {
            let place = place.clone();
            Case::new("tx_add_8_of_64", SAFE, place.level, move |count| {
                of_64(count, |i| {
                    place.pool.write(|tx| {
                        for &field in &first {
                            tx.set(page, field, i)?;
                        }
                        Ok(())
                    })
                })
            })
        },
        safe_case(place, "tx_add_4096", move |place, i| {
            place.pool.write(|tx| {
                let page = tx.get_mut(page)?;
                *page = Page { lines: [Line { value: i, rest: [i; 7] }; RANGES] };
                Ok(())
            })
        }),
        safe_case(place, "tx_add_4096_unwritten", move |place, _| {
            place.pool.write(|tx| tx.get_mut(page).map(|_| ()))
        }),
        safe_malloc(place, "malloc_8", || 0u64),
        safe_malloc(place, "malloc_4096", || EMPTY),
        safe_malloc_free(place, "malloc_free_8", || 0u64),
        safe_malloc_free(place, "malloc_free_4096", || EMPTY),
    ]
}

fn safe_malloc<T: Persist>(place: &Rc<BenchPlace>, row: &'static str, value: fn() -> T) -> Case {
    let place = place.clone();
    Case::new(row, SAFE, place.level, move |count| {
        in_batches(
            count,
            |_| place.pool.write(|tx| tx.alloc(value())),
            |block: Ptr<T>| place.pool.write(|tx| tx.free(block)),
        )
    })
}

fn safe_malloc_free<T: Persist>(
    place: &Rc<BenchPlace>,
    row: &'static str,
    value: fn() -> T,
) -> Case {
    safe_case(place, row, move |place, _| {
        let block = place.pool.write(|tx| tx.alloc(value()))?;
        place.pool.write(|tx| tx.free(block))
    })
}
