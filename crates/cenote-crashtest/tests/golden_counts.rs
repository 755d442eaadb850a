//! Pins what each primitive costs, exactly: the table in `docs/counts.md` says what is executed, at
//! both levels.
//!
//! Counts are of the second of two equal transactions: the store that finished the one before it
//! ("lazy", see `cenote-tx`) is flushed there and made durable by the first fence of the next, and
//! no superblock has to be taken.

use cenote::raw::Heap;
use cenote::{Pool, Store, TypeId};
use cenote_collections::List;
use cenote_crashtest::rig::{WINDOW_LEN, pool_options, window_base};
use cenote_layout::log::entry_size;
use cenote_log::{Body, CrashKind, LogWriter, SegmentSource, inspect};
use cenote_medium::Durability;
use cenote_medium::counters::{self, Counts};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_tx::{LogGroup, Transaction, TxContext};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name, flushed lines, fences, streamed bytes at `power`; bytes of log entries at `process`, where
/// nothing else is spent.
type Row = (String, u64, u64, u64, u64);

struct NoMore;

impl SegmentSource for NoMore {
    fn segment(&mut self, _: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("these transactions fit into one segment".into())
    }
}

/// A store with one pool, and a thread with one log.
struct CountedStore {
    context: TxContext,
    group: Arc<LogGroup>,
    log: Body,
    /// 8 KiB, at the start of a line.
    page: *mut u8,
    pool: Pool,
    store: Store,
}

fn new_context(store: &Store, group: &Arc<LogGroup>) -> (TxContext, Body) {
    // SAFETY: only a log is asked for, which is used as transactions use theirs.
    let raw = unsafe { store.as_raw() };
    let lease = raw.acquire_log().expect("a log");
    // SAFETY: the log is mapped until the store is dropped, after the context, and has no other
    // user.
    let context = unsafe {
        let writer =
            LogWriter::attach(lease.body(), raw.persistence(), Box::new(NoMore)).expect("attach");
        TxContext::new(writer, group.clone())
    };
    (context, lease.body())
}

impl CountedStore {
    fn new(level: Durability, place: usize) -> Self {
        let sim = SimMedium::new(SimOptions { record: false, ..SimOptions::new(level) });
        let window = Some(window_base(6000 + place));
        let options =
            cenote::FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
        cenote_store::format(sim.clone(), &options).expect("format");
        let store = Store::open_on(sim, &cenote::OpenOptions::default()).expect("open");
        let pool = store.create_pool("a", &pool_options(20)).expect("a pool");
        let group = LogGroup::new();
        let (context, log) = new_context(&store, &group);
        let mut place = Self { context, group, log, page: std::ptr::null_mut(), pool, store };
        let (mut page, heap) = (std::ptr::null_mut(), place.heap());
        place.run(|tx| {
            // SAFETY: the heap outlives the transaction.
            page = unsafe { tx.alloc(heap, 8192, 64, TypeId::UNTYPED) }.expect("alloc").as_ptr();
        });
        place.page = page;
        place
    }

    fn heap(&self) -> &'static dyn Heap {
        // SAFETY: the pool is dropped after everything that uses its heap: the measurements are
        // over then.
        unsafe { std::mem::transmute::<&dyn Heap, &'static dyn Heap>(self.pool.raw_heap()) }
    }

    fn run(&mut self, body: impl FnOnce(&mut Transaction<'_>)) {
        // SAFETY: committed here.
        let mut tx = unsafe { self.context.begin() };
        body(&mut tx);
        tx.commit().expect("commit");
    }

    /// Bytes of the entries of the transaction in progress.
    fn logged(&self) -> u64 {
        // SAFETY: mapped; no thread writes meanwhile.
        let summary =
            unsafe { inspect(self.log, CrashKind::Process, &mut |_, _| None) }.expect("a log");
        let data = |e: &cenote_log::scan::ScannedEntry| u64::from(e.kind.data_len(e.size));
        summary.entries.iter().map(|entry| entry_size(data(entry))).sum()
    }
}

/// Runs a transaction twice, ended by commit or abort, and counts the second.
fn steady(
    place: &mut CountedStore,
    abort: bool,
    mut body: impl FnMut(&mut Transaction<'_>),
) -> (Counts, u64) {
    let mut result = (Counts::default(), 0);
    for _ in 0..2 {
        let context: *mut TxContext = &raw mut place.context;
        let before = counters::snapshot();
        // SAFETY: ended below; `logged` does not touch the context.
        let mut tx = unsafe { (*context).begin() };
        body(&mut tx);
        let logged = place.logged();
        if abort {
            tx.abort()
        } else {
            tx.commit().expect("commit")
        }
        result = (counters::snapshot() - before, logged);
    }
    result
}

fn add(tx: &mut Transaction<'_>, page: *mut u8, at: usize, len: usize) {
    // SAFETY: inside the page, which this transaction alone uses.
    unsafe {
        tx.add(page.add(at), len).expect("add");
        page.add(at).write_bytes(page.add(at).read().wrapping_add(1), len);
    }
}

/// The rows so far.
#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn row(&mut self, name: &str, (counts, logged): (Counts, u64)) {
        self.0.push((name.into(), counts.flushes, counts.fences, counts.streamed_bytes, logged));
    }

    /// A row of a transaction that commits.
    fn commits(
        &mut self,
        name: &str,
        place: &mut CountedStore,
        body: impl FnMut(&mut Transaction<'_>),
    ) {
        self.row(name, steady(place, false, body));
    }

    /// A row of one that is aborted.
    fn aborts(
        &mut self,
        name: &str,
        place: &mut CountedStore,
        body: impl FnMut(&mut Transaction<'_>),
    ) {
        self.row(name, steady(place, true, body));
    }
}

fn set(tx: &mut Transaction<'_>, page: *mut u8, count: usize) {
    for k in 0..count {
        // SAFETY: inside the page.
        unsafe { tx.set(page.add(k * 64), [k as u8; 8].as_ptr(), 8) }.expect("set");
    }
}

/// Allocates a block that nothing uses.
fn alloc(tx: &mut Transaction<'_>, heap: &'static dyn Heap) -> u64 {
    // SAFETY: the heap outlives the transactions.
    let block = unsafe { tx.alloc(heap, 64, 8, TypeId::UNTYPED) }.expect("alloc");
    block.as_ptr() as u64
}

fn measure(level: Durability) -> Vec<Row> {
    let mut place = CountedStore::new(level, level as usize);
    let mut rows = Rows::default();
    changes(&mut place, &mut rows);
    blocks(&mut place, &mut rows);
    let (page, heap) = (place.page, place.heap());
    rows.aborts("add 8, abort", &mut place, |tx| add(tx, page, 0, 8));
    rows.aborts("alloc 64, abort", &mut place, |tx| {
        alloc(tx, heap);
    });
    rows.aborts("set 8, abort", &mut place, |tx| set(tx, page, 1));
    let (second, _) = new_context(&place.store, &place.group);
    rows.commits("add 8, another log in use", &mut place, |tx| add(tx, page, 0, 8));
    rows.commits("add 4096, another log in use", &mut place, |tx| add(tx, page, 0, 4096));
    rows.commits("set 8, another log in use", &mut place, |tx| set(tx, page, 1));
    rows.commits("alloc 64, another log in use", &mut place, |tx| {
        alloc(tx, heap);
    });
    drop(second);
    let pool = place.pool.clone();
    let list = pool
        .write(|tx| -> cenote::Result<_> {
            let list = List::<u64>::new(tx)?;
            list.push_back(tx, 1)?;
            list.push_back(tx, 2)?;
            Ok(list)
        })
        .expect("a list");
    let before = counters::snapshot();
    pool.write(|tx| list.push_back(tx, 3)).expect("push");
    // Its log is the crate's own, so its entries are not counted here.
    rows.row("list: push_back of 8 bytes", (counters::snapshot() - before, 0));
    drop((pool, place.context));
    rows.0
}

/// Transactions that change a page.
fn changes(place: &mut CountedStore, rows: &mut Rows) {
    let page = place.page;
    rows.commits("empty", place, |_| {});
    rows.commits("add 8", place, |tx| add(tx, page, 0, 8));
    rows.commits("add 8, twice the same", place, |tx| {
        (0..2).for_each(|_| add(tx, page, 0, 8));
    });
    let words = 0..64usize;
    rows.commits("add 8, 64 times", place, |tx| {
        words.clone().for_each(|k| add(tx, page, k * 64, 8));
    });
    rows.commits("add 8, 64 at once", place, |tx| {
        // SAFETY: inside the page.
        let ranges: Vec<_> =
            words.clone().map(|k| (unsafe { page.add(k * 64) }.cast_const(), 8)).collect();
        // SAFETY: as above, and logged.
        unsafe {
            tx.add_all(&ranges).expect("add");
            words.clone().for_each(|k| page.add(k * 64).write(k as u8));
        }
    });
    rows.commits("add 4096", place, |tx| add(tx, page, 0, 4096));
    rows.commits("set 8", place, |tx| set(tx, page, 1));
    rows.commits("set 8, 4 words", place, |tx| set(tx, page, 4));
}

/// Transactions that allocate and free.
fn blocks(place: &mut CountedStore, rows: &mut Rows) {
    let heap = place.heap();
    // A block stays, so that the superblock does.
    place.run(|tx| {
        alloc(tx, heap);
    });
    rows.commits("alloc 64", place, |tx| {
        alloc(tx, heap);
    });
    rows.commits("alloc 64 and free it", place, |tx| {
        let block = alloc(tx, heap);
        // SAFETY: the heap outlives the transaction; no code uses the block.
        unsafe { tx.free(heap, block) }.expect("free");
    });
    let mut blocks = Vec::new();
    place.run(|tx| blocks.extend((0..2).map(|_| alloc(tx, heap))));
    rows.commits("free 64", place, |tx| {
        // SAFETY: as above.
        unsafe { tx.free(heap, blocks.pop().expect("a block")) }.expect("free");
    });
}

#[test]
fn at_process_level_nothing_is_flushed_fenced_or_streamed() {
    for (name, flushes, fences, streamed, _) in measure(Durability::Process) {
        assert_eq!((flushes, fences, streamed), (0, 0, 0), "{name}");
    }
}

/// The rows of the document: the cells of every line that begins with `| ` and has numbers.
fn document() -> BTreeMap<String, [u64; 4]> {
    let text = include_str!("../../../docs/counts.md");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line
            .trim()
            .strip_prefix('|')?
            .trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, numbers @ ..] = &cells[..] else { return None };
        let numbers: Vec<u64> =
            numbers.iter().map(|n| n.replace(',', "").parse().ok()).collect::<Option<_>>()?;
        Some(((*name).to_owned(), numbers.try_into().ok()?))
    });
    rows.collect()
}

#[test]
fn the_documented_counts_are_what_is_executed() {
    let logged: BTreeMap<String, u64> = measure(Durability::Process)
        .into_iter()
        .map(|(name, _, _, _, logged)| (name, logged))
        .collect();
    let measured: BTreeMap<String, [u64; 4]> = measure(Durability::Power)
        .into_iter()
        .map(|(name, flushes, fences, streamed, _)| {
            let logged = logged[&name];
            (name, [flushes, fences, streamed, logged])
        })
        .collect();
    for (name, row) in &measured {
        println!("| {name} | {} | {} | {} | {} |", row[0], row[1], row[2], row[3]);
    }
    assert_eq!(document(), measured, "docs/counts.md and what is executed differ");
}

/// What other processes store is not to be compared with a seal of this one: where they share a
/// pool, no commit leaves its range unfenced.
#[test]
fn commits_beside_other_processes_fence_their_range() {
    let fences = |place: &mut CountedStore| {
        let page = place.page;
        steady(place, false, |tx| add(tx, page, 0, 8)).0.fences
    };
    for (number, bug) in [(7, Bug::None), (8, Bug::LazyDespiteSharing)] {
        let mut place = CountedStore::new(Durability::Power, number);
        let alone = fences(&mut place);
        plant(bug);
        // SAFETY: asked for its persistence only.
        place.group.never_lazy(unsafe { place.store.as_raw() }.persistence());
        let beside = fences(&mut place);
        plant(Bug::None);
        // The planted one is noticed by just this.
        assert_eq!(beside, alone + u64::from(bug == Bug::None), "{bug:?}");
    }
}
