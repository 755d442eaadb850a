//! Metadata of logged heaps in a daemon's client: guarded as in a store that the program keeps
//! itself, between guard pages, in each mode.

use crate::common::{Actor, Daemon, add, listen, make_counter, say};
use crate::shadowed::{counted, lose_power};
use cenote::{HeapKind, PoolMode, PoolOptions, Store};
use cenote_protect::{RangeKind, explain};
use cenote_sys::bytes::{copy_by_kernel, store_by_kernel};
use cenote_sys::mappings;
use std::fs::File;
use std::path::Path;
use std::process::Command;

const PAGE: usize = 4096;

/// The pages of this process's files of puddles that are for this.
fn pages(kind: RangeKind) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let of_puddle = maps.lines().filter(|line| line.contains("/puddles/"));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
    };
    let all = of_puddle.filter_map(range).flat_map(|(from, to)| (from..to).step_by(PAGE));
    // Second mappings are of the same files.
    all.filter(|page| explain(*page).is_some_and(|found| found.kind == kind)).collect()
}

/// How many pages of metadata and how many guard pages there are, none of which the kernel accesses
/// for this process as a stray access would.
fn closed() -> String {
    let (metadata, guards) = (pages(RangeKind::Metadata), pages(RangeKind::Guard));
    for page in &metadata {
        assert!(copy_by_kernel(*page, &mut [0; 8]).is_ok());
        // SAFETY: it is refused.
        let stored = unsafe { store_by_kernel(*page, &[0xee; 8]) };
        assert!(stored.is_err(), "metadata at {page:#x}");
    }
    for page in &guards {
        assert!(copy_by_kernel(*page, &mut [0; 8]).is_err(), "a guard page at {page:#x}");
    }
    format!("{} {}", metadata.len(), guards.len())
}

/// The actor `guarded`.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connected");
    let pool = store.pool("numbers").expect("a pool");
    say("open");
    loop {
        match listen().as_str() {
            "add" => say(&add(&pool).to_string()),
            "psync" => say(&pool.psync().expect("a psync").pages.to_string()),
            "closed" => say(&closed()),
            // SAFETY: nothing is changed.
            "guarded" => say(&unsafe { pool.raw_heap() }.is_guarded().to_string()),
            "crowd" => {
                // From now on the first store into a puddle opens all of it.
                mappings::set_limit(16);
                say("crowded");
            }
            "metadata" => access(pages(RangeKind::Metadata)[3], true),
            "guard" => access(pages(RangeKind::Guard)[0], false),
            _ => break,
        }
    }
}

fn access(page: usize, store: bool) {
    let word = core::ptr::with_exposed_provenance_mut::<u64>(page + 64);
    // SAFETY: a word of a mapped page; the access faults, or the parent finds what it did.
    unsafe {
        match store {
            true => word.write_volatile(1),
            false => drop(word.read_volatile()),
        }
    }
    say("alive");
}

fn create(daemon: &Daemon, mode: PoolMode) {
    create_as(daemon, PoolOptions { heap: HeapKind::Logged, mode, ..PoolOptions::default() });
}

fn create_as(daemon: &Daemon, options: PoolOptions) {
    let pool = daemon.connect().create_pool("numbers", &options).expect("created");
    make_counter(&pool);
}

fn start(daemon: &Daemon) -> Actor {
    let said = File::create(daemon.path("said")).expect("a file");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut actor = Actor::run(command.stderr(said), "guarded", daemon);
    assert_eq!(actor.hear(), "open");
    actor
}

fn told(actor: &mut Actor, order: &str) -> String {
    actor.tell(order);
    actor.hear()
}

fn number(actor: &mut Actor, order: &str) -> u64 {
    told(actor, order).parse().expect("a number")
}

#[test]
fn a_stray_access_of_a_client_ends_it_and_its_pool_is_as_it_was() {
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        let daemon = Daemon::start(&[]);
        create(&daemon, mode);
        let accesses = [("metadata", "stray write"), ("guard", "stray read")];
        for (round, (place, what)) in (1..).zip(accesses) {
            let mut actor = start(&daemon);
            assert_eq!(number(&mut actor, "add"), round);
            let closed = told(&mut actor, "closed");
            let counts: Vec<u64> =
                closed.split(' ').map(|n| n.parse().expect("a number")).collect();
            // Header and words, and a sub-heap; both sides of the roots, and of that.
            assert!(counts[0] > 20 && counts[1] >= 3, "{mode:?}: {closed}");
            actor.tell(place);
            assert!(!actor.ends());
            let said = std::fs::read_to_string(daemon.path("said")).expect("what it said");
            assert!(said.contains(&format!("cenote: {what} at 0x")), "{said}");
            assert!(said.contains("of pool `numbers`"), "{said}");
            daemon.wait_until("its end is seen", |stat| stat.sessions == 1);
            assert_eq!(counted(&daemon, "numbers"), round, "{mode:?}, {place}");
        }
    }
}

/// Heaps of clients say that they are guarded, of each kind and in each mode, and stray writes into
/// what they guard end the client.
#[test]
fn heaps_of_clients_are_guarded_and_their_psyncs_are_whole() {
    for heap in [HeapKind::Traced, HeapKind::Logged] {
        for mode in [PoolMode::Direct, PoolMode::Shadowed] {
            let daemon = Daemon::start(&[]);
            create_as(&daemon, PoolOptions { heap, mode, ..PoolOptions::default() });
            let mut actor = start(&daemon);
            assert_eq!(number(&mut actor, "add"), 1);
            assert_eq!(told(&mut actor, "guarded"), "true", "{heap:?} {mode:?}");
            let closed = told(&mut actor, "closed");
            assert!(!closed.starts_with("0 "), "{heap:?} {mode:?}: {closed}");
            if mode == PoolMode::Shadowed {
                assert!(number(&mut actor, "psync") > 0);
                assert_eq!(number(&mut actor, "add"), 2);
                assert!(number(&mut actor, "psync") > 0);
            }
            actor.tell("metadata");
            assert!(!actor.ends());
            let said = std::fs::read_to_string(daemon.path("said")).expect("what it said");
            assert!(said.contains("cenote: stray write at 0x"), "{said}");
            assert!(said.contains("metadata of pool `numbers`"), "{said}");
            daemon.wait_until("its end is seen", |stat| stat.sessions == 1);
            let adds = if mode == PoolMode::Shadowed { 2 } else { 1 };
            assert_eq!(counted(&daemon, "numbers"), adds, "{heap:?} {mode:?}");
        }
    }
}

/// A psync of a client sends pages from where they are mapped. Where mappings run short, guard
/// pages count as stored into with all others: no process can read them there.
#[test]
fn a_psync_of_a_client_reads_no_guard_page_where_mappings_run_short() {
    let mut daemon = Daemon::start(&[]);
    create(&daemon, PoolMode::Shadowed);
    let mut actor = start(&daemon);
    assert_eq!(number(&mut actor, "add"), 1);
    assert!(number(&mut actor, "psync") > 0);
    let closed = told(&mut actor, "closed");
    assert_eq!(told(&mut actor, "crowd"), "crowded");
    assert_eq!(number(&mut actor, "add"), 2);
    assert!(number(&mut actor, "psync") > 0);
    assert_eq!(told(&mut actor, "closed"), closed, "no right was given back");
    assert_eq!(number(&mut actor, "add"), 3);
    actor.kill();
    lose_power(&mut daemon);
    daemon.restart();
    assert_eq!(counted(&daemon, "numbers"), 2, "the last psync");
}
