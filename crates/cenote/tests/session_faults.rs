//! A session in which one call fails: opening, a transaction, a psync, closing. Whatever it says,
//! the next session opens the store, finds no damage, and has the pool as before the transaction or
//! after it.

use crate::at_rest::{count, options, push};
use cenote::{AtRest, FormatOptions, OpenOptions, Result, Store};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::sync::Arc;

/// Nodes before the session, and after it.
const BEFORE: u64 = 5;
const AFTER: u64 = 8;

fn base() -> Image {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(0x1580_0000_0000),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).unwrap();
    let store = Store::open_on(medium, &OpenOptions::default()).unwrap();
    let pool = store.create_pool("p", &options(AtRest::None, None)).unwrap();
    push(&pool, 0, BEFORE);
    drop(pool);
    store.close().unwrap();
    sim.image_now(CrashKind::Process)
}

/// Whether all of it is said to be done.
fn session(medium: Arc<dyn Medium>) -> Result<bool> {
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.pool("p")?;
    // The transaction may fail too: `push` panics then, and a caller that panics closes nothing by
    // itself.
    let pushed =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| push(&pool, BEFORE, AFTER)));
    pool.psync()?;
    drop(pool);
    store.close()?;
    Ok(pushed.is_ok())
}

#[test]
fn a_session_with_one_failed_call_leaves_a_store_that_opens() {
    let base = base();
    for effect in [FaultEffect::NoSpace, FaultEffect::Io] {
        let mut calls = 0;
        loop {
            let sim = SimMedium::from_image(&base);
            sim.inject(Fault::once(FaultPoint::AnyOperation, calls, effect));
            let said = session(sim.clone());
            let hit = sim.fault_hits() > 0;
            sim.clear_faults();
            let image = sim.image_now(CrashKind::Process);
            drop(sim);
            let medium: Arc<dyn Medium> = SimMedium::from_image(&image);
            let store = Store::open_on(medium, &OpenOptions::default()).unwrap_or_else(|error| {
                panic!("{effect:?} of call {calls}, {said:?}, then: {error}")
            });
            let damage = &store.report().damage;
            assert!(damage.is_empty(), "{effect:?} of call {calls}, {said:?}, then: {damage:?}");
            let pool = store.pool("p").unwrap();
            let there = count(&pool);
            assert!(
                (BEFORE..=AFTER).contains(&there) && (!matches!(said, Ok(true)) || there == AFTER),
                "{effect:?} of call {calls}, {said:?}: {there} nodes"
            );
            drop(pool);
            store.close().unwrap();
            if !hit {
                break;
            }
            calls += 1;
        }
        println!("{effect:?}: {calls} calls");
        assert!(calls > 20, "{calls} calls");
    }
}
