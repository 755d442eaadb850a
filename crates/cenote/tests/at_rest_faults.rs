//! Pools that are protected at rest, when something goes wrong: every file operation of a psync
//! fails once, in every way that a system call can; and a load touches a page that was damaged.

use crate::at_rest::{Node, closed, count, key, key_for, options, push, touch};
use cenote::{Access, AtRest, FormatOptions, OpenOptions, Pool, Reader, Store};
use cenote_medium::sim::{
    CrashKind, Fault, FaultEffect, FaultPoint, Image, Rest, SimMedium, SimOptions,
};
use cenote_medium::{Durability, Medium, Operation};
use cenote_store::Rekeyed;
use cenote_testkit::child::again;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;

/// Nodes before the psync that goes wrong, and after it.
const BEFORE: u64 = 20;
const AFTER: u64 = 30;

fn opened(image: &Image, at_rest: AtRest) -> (Arc<SimMedium>, Store, Pool) {
    let sim = SimMedium::from_image(image);
    let medium: Arc<dyn Medium> = sim.clone();
    let options = OpenOptions { key: key_for(at_rest, 1), ..OpenOptions::default() };
    let store = Store::open_on(medium, &options).unwrap();
    let pool = store.pool("p").unwrap();
    (sim, store, pool)
}

/// A store with a pool of `BEFORE` nodes, psynced and closed.
fn base(at_rest: AtRest, window_base: u64) -> Image {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(window_base),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).unwrap();
    let store = Store::open_on(medium, &OpenOptions::default()).unwrap();
    let pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
    push(&pool, 0, BEFORE);
    drop(pool);
    store.close().unwrap();
    sim.image_now(CrashKind::Process)
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: u64,
    failed: u64,
    poisoned: u64,
}

/// One operation of a psync goes wrong. Whether it has so many.
fn one_call(base: &Image, at_rest: AtRest, fault: Fault, tally: &mut Tally) -> bool {
    let at = format!("{at_rest:?}, {:?} {} {:?}", fault.point, fault.skip, fault.effect);
    let (sim, store, pool) = opened(base, at_rest);
    push(&pool, BEFORE, AFTER);
    touch(&pool);
    let point = fault.point;
    sim.inject(fault);
    let done = pool.psync();
    let hit = sim.fault_hits() > 0;
    sim.clear_faults();
    assert!(done.is_ok() || hit, "{at}: {done:?}");
    assert_eq!(count(&pool), AFTER, "{at}: the memory lost what was stored");
    let again = done.as_ref().err().map(|_| pool.psync());
    let poisoned = again.as_ref().is_some_and(Result::is_err);
    if poisoned {
        // Only a sync that fails leaves a doubt about what is on the medium; a thread's turn
        // decides whether it was this psync's.
        let sync =
            matches!(point, FaultPoint::Operation(Operation::Sync) | FaultPoint::AnyOperation);
        assert!(sync, "{at}: {done:?}, and when it is done again: {again:?}");
        assert!(pool.psync().is_err(), "{at}: a poisoned store acknowledges");
    }
    tally.calls += u64::from(hit);
    tally.failed += u64::from(done.is_err());
    tally.poisoned += u64::from(poisoned);
    let acknowledged = done.is_ok() || again.is_some_and(|again| again.is_ok());
    let crashed = sim.state_now();
    drop(pool);
    store.abandon();
    for image in [crashed.image_process(), crashed.image_oldest(), crashed.image_latest()] {
        let (_sim, store, pool) = opened(&image, at_rest);
        let there = count(&pool);
        assert!(
            there == AFTER || (there == BEFORE && !acknowledged),
            "{at}: {done:?}, acknowledged {acknowledged}: {there} nodes after {:?}",
            image.kind()
        );
        assert!(
            pool.verify(&mut |_, _| true).iter().all(|puddle| puddle.found.damaged.is_empty()),
            "{at}"
        );
        drop(pool);
        store.abandon();
    }
    hit
}

#[test]
fn every_call_of_a_psync_of_a_protected_pool_may_fail() {
    let (any, sync) = (FaultPoint::AnyOperation, FaultPoint::Operation(Operation::Sync));
    let write = FaultPoint::Operation(Operation::Write);
    let short = |eighths, then| (write, FaultEffect::Short { eighths, then });
    let ways = [
        (any, FaultEffect::Io),
        (any, FaultEffect::NoSpace),
        (sync, FaultEffect::Io),
        short(1, Rest::NoSpace),
        short(4, Rest::Io),
        short(4, Rest::Written),
    ];
    for (number, at_rest) in
        (0..).zip([AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated])
    {
        let base = base(at_rest, 0x1500_0000_0000 + (number << 32));
        let mut tally = Tally::default();
        for (point, effect) in ways {
            let mut calls = 0;
            while one_call(&base, at_rest, Fault::once(point, calls, effect), &mut tally) {
                calls += 1;
                assert!(calls < 400, "it has no end");
            }
            assert!(calls > 0, "{at_rest:?}: nothing was hit by {point:?} {effect:?}");
        }
        println!("{at_rest:?}: {tally:?}");
        assert!(tally.failed > 5, "{at_rest:?}: hardly any call failed: {tally:?}");
    }
}

/// Which of the keys 1 and 2 opens the pool, and reads it; exactly one does.
fn key_of_pool(image: &Image) -> u8 {
    let sim = SimMedium::from_image_unrecorded(image);
    let medium: Arc<dyn Medium> = sim.clone();
    let store = Store::open_on(medium, &OpenOptions::default()).unwrap();
    let mut opens = Vec::new();
    for number in [1, 2] {
        if let Ok(pool) = store.pool_with_key("p", Access::ReadOnly, &key(number)) {
            assert_eq!(count(&pool), BEFORE);
            opens.push(number);
        }
    }
    store.abandon();
    assert_eq!(opens.len(), 1, "keys {opens:?} open it");
    opens[0]
}

/// One call of a change of a key fails, or all do from that one on. Whether there are so many, and
/// what was said: `Ok`, the new key is the pool's.
fn one_rekey(base: &Image, fault: Fault) -> (bool, bool) {
    let at =
        format!("{:?} {} {:?}, repeats {}", fault.point, fault.skip, fault.effect, fault.repeats);
    let sim = SimMedium::from_image(base);
    let medium: Arc<dyn Medium> = sim.clone();
    let store = Store::open_on(medium, &OpenOptions::default()).unwrap();
    let repeats = fault.repeats;
    sim.inject(fault);
    let said = store.rekey_pool("p", &key(1), &key(2));
    let hit = sim.fault_hits() > 0;
    sim.clear_faults();
    let crashed = sim.state_now();
    store.abandon();
    let mut images = vec![crashed.image_process()];
    // Of a device that takes nothing any more nothing is known after a loss of power.
    if !repeats {
        images.extend([crashed.image_oldest(), crashed.image_latest()]);
    }
    for image in images {
        let expected = if said.is_ok() { 2 } else { 1 };
        assert_eq!(key_of_pool(&image), expected, "{at}: {said:?}, {:?}", image.kind());
    }
    if let Ok(Rekeyed::Unfinished(_)) = &said {
        assert!(hit, "{at}: {said:?}");
    }
    (hit, said.is_ok())
}

#[test]
fn a_pools_change_of_a_key_says_which_key_it_is_whatever_fails() {
    for (number, at_rest) in (8..).zip([AtRest::Encryption, AtRest::Authenticated]) {
        let base = base(at_rest, 0x1500_0000_0000 + (number << 32));
        let short = |eighths, then| FaultEffect::Short { eighths, then };
        let write = FaultPoint::Operation(Operation::Write);
        let ways = [
            (FaultPoint::AnyOperation, FaultEffect::Io),
            (FaultPoint::AnyOperation, FaultEffect::NoSpace),
            (FaultPoint::Operation(Operation::Sync), FaultEffect::Io),
            (write, short(4, Rest::Io)),
            (write, short(8, Rest::NoSpace)),
        ];
        let (mut calls, mut said_new) = (0, 0);
        for repeats in [false, true] {
            for (point, effect) in ways {
                let mut skip = 0;
                loop {
                    let fault = Fault { repeats, ..Fault::once(point, skip, effect) };
                    let (hit, new) = one_rekey(&base, fault);
                    if !hit {
                        break;
                    }
                    calls += 1;
                    said_new += u64::from(new);
                    skip += 1;
                }
            }
        }
        println!("{at_rest:?}: {calls} calls failed, {said_new} after the commit");
        assert!(calls > 20 && said_new > 0, "{calls} {said_new}");
    }
}

const CHILD_DIR: &str = "CENOTE_AT_REST_DAMAGED_DIR";
/// Set: the child loads through a raw pointer what it cannot get.
const LOADS: &str = "CENOTE_AT_REST_DAMAGED_LOADS";

/// Not a test of its own: what a child process runs, which follows a list into a damaged page.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let store =
        Store::open_with(&dir, &OpenOptions { key: Some(key(1)), ..OpenOptions::default() })
            .unwrap();
    let pool = store.pool("p").unwrap();
    let view = pool.read().unwrap();
    let (mut at, mut nodes) = (view.root::<Node>().unwrap(), 0);
    while let Some(node) = at {
        at = match view.get(node) {
            Ok(node) => node.next(),
            Err(error) => {
                println!("error: {error}");
                if std::env::var_os(LOADS).is_some() {
                    // SAFETY: a live node: the page cannot be had, and that is what the load is
                    // for.
                    unsafe { node.as_ptr().cast::<u64>().read_volatile() };
                }
                return;
            }
        };
        nodes += 1;
    }
    println!("{nodes} nodes");
}

#[test]
fn a_load_from_a_damaged_page_of_a_pool_is_a_bus_error_that_names_pool_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = closed(dir.path(), AtRest::Authenticated);
    let run = |loads: &[&str]| {
        again("at_rest_faults::child")
            .env(CHILD_DIR, dir.path())
            .envs(loads.iter().map(|name| (name, "1")))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let bytes = std::fs::read(&path).unwrap();
    // The last page of the puddle that was ever written: values.
    let written = |page: &usize| bytes[page * 4096..][..4096].iter().any(|byte| *byte != 0);
    let page = (1..64).rev().find(written).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[page * 4096 + 77] ^ 4], page as u64 * 4096 + 77).unwrap();
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(refused.status.success(), "{:?}: {said}", refused.status);
    let named = format!("page {}", page - 1);
    assert!(
        said.contains("error: ") && said.contains("pool \"p\"") && said.contains(&named),
        "{said}"
    );
    let broken = run(&[LOADS]);
    let said = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert_eq!(broken.status.signal(), Some(libc::SIGBUS), "{:?}: {said}", broken.status);
    assert!(said.contains("pool \"p\"") && said.contains(&format!("page {}", page - 1)), "{said}");
    assert!(said.contains("bus error"), "{said}");
    // Put right again, it reads all of it. (The whole file would be an older state.)
    file.write_all_at(&bytes[page * 4096 + 77..][..1], page as u64 * 4096 + 77).unwrap();
    let whole = run(&[]);
    let said = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(whole.status.success() && said.contains("300 nodes"), "{:?}: {said}", whole.status);
}
