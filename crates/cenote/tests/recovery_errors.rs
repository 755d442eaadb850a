//! A call of the system that fails while a store is recovered. What the medium says is no damage:
//! the next open finishes, everything that was acknowledged is there, and no log was set aside.
//!
//! The generator: a store that crashed in a transaction over a pool in direct mode and one in
//! shadowed mode, by a crash of processes or a loss of power; each call of the medium; each error.

use crate::at_rest::{Node, count, options, push};
use crate::support::underneath;
use cenote::{AtRest, ErrorKind, FormatOptions, OpenOptions, Pool, Reader, Result, Store};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::sync::Arc;

const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Of the process, which say nothing of a file.
const PASSING: [i32; 5] = [EMFILE, ENFILE, ENOMEM, EINTR, EAGAIN];
/// Of a file, for this session.
const OF_FILES: [i32; 2] = [EIO, EACCES];

/// Nodes that were psynced, and that were committed.
const PSYNCED: u64 = 4;
pub(crate) const COMMITTED: u64 = 7;

/// A store that crashed in a transaction.
pub(crate) fn crashed(kind: CrashKind) -> Image {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(0x1590_0000_0000),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).unwrap();
    let small = OpenOptions {
        log_puddle_size: 8 << 10,
        journal_half_len: 64 << 10,
        ..OpenOptions::default()
    };
    let store = Store::open_on(medium, &small).unwrap();
    let direct = store.pool("direct").unwrap();
    let shadowed = store.create_pool("shadowed", &options(AtRest::None, None)).unwrap();
    for pool in [&direct, &shadowed] {
        push(pool, 0, PSYNCED);
    }
    shadowed.psync().unwrap();
    for pool in [&direct, &shadowed] {
        push(pool, PSYNCED, COMMITTED);
    }
    let spoil = |pool: &Pool, then: &mut dyn FnMut()| {
        let ended = pool.write(|tx| -> Result<()> {
            let root = tx.root::<Node>()?.expect("a node");
            tx.get_mut(root)?.words = [0; 60];
            then();
            Err(cenote::Error::Aborted("it never ends".into()))
        });
        assert!(matches!(ended, Err(cenote::Error::Aborted(_))), "{ended:?}");
    };
    // Two threads, since one transaction is about pools of one mode.
    let mut image = None;
    spoil(&direct, &mut || {
        let within = || spoil(&shadowed, &mut || image = Some(sim.image_now(kind)));
        std::thread::scope(|scope| scope.spawn(within).join().expect("a transaction"));
    });
    image.expect("an image")
}

/// Opens the store and its pools, and closes it. What went wrong, and whether a pool was refused.
fn attempt(sim: &Arc<SimMedium>, close: bool) -> Result<()> {
    let store = Store::open_on(sim.clone(), &OpenOptions::default())?;
    let pools: Result<Vec<Pool>> =
        ["direct", "shadowed"].iter().map(|name| store.pool(name)).collect();
    let opened = pools.map(drop);
    if close { opened.and(store.close()) } else { opened }
}

/// Opens the store again, without a fault.
pub(crate) fn check(
    image: &Image,
    kind: CrashKind,
    what: &str,
) -> core::result::Result<(), String> {
    let sim: Arc<dyn Medium> = SimMedium::from_image_unrecorded(image);
    let store = Store::open_on(sim, &OpenOptions::default()).map_err(|e| format!("{what}: {e}"))?;
    let (damage, aside) = (&store.report().damage, underneath(&store).undecided_logs());
    let shadowed = if kind == CrashKind::Power { PSYNCED } else { COMMITTED };
    if !damage.is_empty() || aside.as_ref().is_ok_and(|aside| !aside.is_empty()) {
        return Err(format!("{what}: {damage:?}, {aside:?}"));
    }
    for (name, expected) in [("direct", COMMITTED), ("shadowed", shadowed)] {
        let pool = store.pool(name).map_err(|error| format!("{what}: {name}: {error}"))?;
        let there = count(&pool);
        if there != expected {
            return Err(format!("{what}: {name} has {there} nodes, not {expected}"));
        }
    }
    store.close().map_err(|error| format!("{what}: {error}"))
}

/// Fails each call once with this error, or each `stride`-th one; the calls, and those after which
/// an open said that a file is damaged.
fn sweep(base: &Image, kind: CrashKind, errno: i32, stride: u64, close: bool) -> (u64, u64) {
    let stride = if std::env::var_os("CENOTE_THOROUGH").is_some() { 1 } else { stride };
    let (mut call, mut damaged) = (errno as u64 % stride, 0);
    loop {
        let sim = SimMedium::from_image_unrecorded(base);
        sim.inject(Fault::once(FaultPoint::AnyOperation, call, FaultEffect::Errno(errno)));
        let said = attempt(&sim, close);
        let hit = sim.fault_hits() > 0;
        sim.clear_faults();
        let what = format!("{kind:?}, errno {errno} of call {call}, {said:?}");
        let is_damage = |error: &cenote::Error| error.kind() == ErrorKind::Damaged;
        damaged += u64::from(hit && said.as_ref().is_err_and(is_damage));
        let image = sim.image_now(CrashKind::Process);
        drop(sim);
        check(&image, kind, &what).unwrap_or_else(|why| panic!("{why}"));
        if !hit {
            assert!(said.is_ok(), "{what}");
            return (call, damaged);
        }
        call += stride;
    }
}

#[test]
fn an_error_of_the_process_fails_the_open_and_the_next_one_finishes() {
    for kind in [CrashKind::Process, CrashKind::Power] {
        let base = crashed(kind);
        check(&base, kind, "no fault").unwrap();
        for (errno, stride) in PASSING.into_iter().zip([1, 17, 17, 17, 17]) {
            let (calls, damaged) = sweep(&base, kind, errno, stride, true);
            assert!(calls > 40, "{calls} calls");
            assert_eq!(damaged, 0, "{kind:?}, errno {errno}: what passes is no damage");
        }
        println!("{kind:?}: {} calls", sweep(&base, kind, EMFILE, 17, false).0);
    }
}

#[test]
fn an_error_of_one_file_costs_its_pool_for_that_session_alone() {
    for kind in [CrashKind::Process, CrashKind::Power] {
        let base = crashed(kind);
        let damaged: u64 = OF_FILES.iter().map(|errno| sweep(&base, kind, *errno, 3, true).1).sum();
        assert!(damaged > 0, "{kind:?}: no file was refused");
    }
}

#[test]
fn planted_an_error_of_the_process_that_counts_as_damage_is_noticed() {
    let base = crashed(CrashKind::Process);
    plant(Bug::ErrorIsDamage);
    let (_, damaged) = sweep(&base, CrashKind::Process, EMFILE, 3, true);
    plant(Bug::None);
    assert!(damaged > 0);
}
