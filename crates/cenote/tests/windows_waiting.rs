//! Stores that move to another window although something waits at the old one: logs, kept psyncs,
//! protected pools with a damaged file, pools that a loss of power may have torn.
//!
//! On the simulated medium: each crash of the move, where the window is free and where it is taken
//! once more, before and after what was away comes back; and each crash of the session after that.

use crate::archives::{Node, list, node, small, values, window};
use crate::doubt::with_log_set_aside;
use crate::windows::Taken;
use crate::windows_damaged::crashes;
use cenote::{
    Access, AtRest, Durability, Error, FormatOptions, Keyring, MasterKey, OpenOptions, Pool,
    PoolMode, PoolOptions, PowerLossPolicy, Reader, Result, Store, field,
};
use cenote_layout::PAGE_SIZE;
use cenote_layout::heap::HeapGeometry;
use cenote_layout::puddle::Role;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_store::{OpenError, StoreError};
use std::ops::ControlFlow;
use std::sync::Arc;

const LEN: u64 = 40;

/// A store that crashed or was closed, something of which is away.
struct Case {
    start: Image,
    home: u64,
    options: OpenOptions,
    /// What is away, and what it held.
    away: Option<(String, Vec<u8>)>,
    /// What the pool "bad" holds when that is back.
    expected: Vec<u64>,
}

fn sim(level: Durability, base: u64) -> Result<(Arc<SimMedium>, Store)> {
    let sim = SimMedium::new(SimOptions { seed: base, ..SimOptions::new(level) });
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_base: Some(base), window_len: 1 << 28, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let options = OpenOptions { journal_half_len: 64 << 10, ..OpenOptions::default() };
    Ok((sim, Store::open_on(medium, &options)?))
}

/// The file of a pool's first puddle, or of a log.
fn file_of(store: &Store, pool: Option<&str>, dir: &str) -> String {
    let id = |name| store.pools().into_iter().find(|info| info.record.name == name);
    let id = pool.map(|name| id(name).expect("it is there").record.id);
    let mut puddles = store.puddle_records().into_iter();
    let found = puddles.find(|puddle| match id {
        Some(id) => puddle.pool == id && puddle.index == 0,
        None => puddle.role == Role::Log,
    });
    let uuid = found.expect("it has one").uuid;
    let hex: String = uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
    format!("{dir}/{hex}")
}

fn push(tx: &mut cenote::Tx<'_>, value: u64) -> Result<()> {
    let next = tx.root::<Node>()?.expect("a node");
    let first = tx.alloc(node(value, Some(next)))?;
    tx.set_rel(next, field!(Node, back), Some(first))?;
    tx.set_root(first)
}

/// A crash in a transaction on "bad".
fn in_a_transaction(level: Durability, kind: CrashKind) -> Result<(Case, String, String)> {
    let base = window();
    let (sim, store) = sim(level, base)?;
    for name in ["bad", "good"] {
        drop(list(&store, name, &small(), LEN)?);
    }
    store.close()?;
    let store = Store::open_on(sim.clone(), &OpenOptions::default())?;
    let pool = store.pool("bad")?;
    pool.write(|tx| push(tx, 100))?;
    let (mut image, mut log) = (None, String::new());
    let ended: Result<()> = pool.write(|tx| {
        push(tx, 200)?;
        log = file_of(&store, None, "puddles");
        image = Some(match kind {
            CrashKind::Process => sim.image_now(kind),
            _ => sim.state_now().image_latest(),
        });
        Err(Error::Aborted("it never ends".into()))
    });
    assert!(ended.is_err());
    let root = file_of(&store, Some("bad"), "puddles");
    let expected = core::iter::once(100).chain(0..LEN).collect();
    let (start, options) = (image.expect("taken"), OpenOptions::default());
    Ok((Case { start, home: base, options, away: None, expected }, root, log))
}

impl Case {
    fn take_away(&mut self, name: String) {
        let bytes = self.start.file(&name).expect("it is there");
        assert!(self.start.remove(&name));
        self.away = Some((name, bytes));
    }

    /// On a medium that records, because that keeps no window for later simulations.
    fn open(&self, image: &Image) -> Result<Store> {
        Store::open_on(SimMedium::from_image(image), &self.options)
    }

    /// With what was away.
    fn back(&self, image: &Image) -> Image {
        let mut image = image.clone();
        self.away.iter().for_each(|(name, bytes)| image.set_file(name, bytes));
        image
    }

    /// A reader, and then a writer, find all of it.
    fn is_whole(&self, image: &Image) -> Result<()> {
        let image = self.back(image);
        let reader = OpenOptions { access: Access::ReadOnly, ..self.options.clone() };
        let store = Store::open_on(SimMedium::from_image(&image), &reader)?;
        match store.pool_with("bad", Access::ReadOnly) {
            Err(Error::TraceDue { .. }) => {}
            pool => self.holds(&pool?)?,
        }
        drop(store);
        let store = self.open(&image)?;
        self.pools(&store)?;
        store.close()
    }

    fn holds(&self, pool: &Pool) -> Result<()> {
        let found = values(pool)?;
        if found == self.expected {
            return Ok(());
        }
        Err(Error::Aborted(format!("it holds {found:?}")))
    }

    fn pools(&self, store: &Store) -> Result<()> {
        let bad = store.pool("bad")?;
        self.holds(&bad)?;
        bad.write(|tx| tx.alloc(7u64).and_then(|value| tx.free(value)))?;
        assert_eq!(bad.check()?.damage.len(), 0);
        drop(bad);
        good(store)
    }

    /// Puts what was away back into a medium that is in use.
    fn put_back(&self, sim: &SimMedium) {
        let (name, bytes) = self.away.as_ref().expect("it is away");
        let put = || {
            sim.create(name, bytes.len() as u64)?;
            // SAFETY: a file of a pool that no part of the program has mapped.
            unsafe { sim.write_at(name, 0, bytes) }?;
            sim.sync(name)?;
            sim.sync_dir("puddles")
        };
        put().expect("room");
    }

    /// Crashes of the move, and of the session that finds all back: how many, and what was lost.
    fn explore(&self, late: Bug) -> Result<(usize, Option<Error>)> {
        let mut all = 0;
        let sim = SimMedium::from_image(&self.start);
        let taken = Taken::new(self.home);
        let store = Store::open_on(sim.clone(), &self.options)?;
        assert_eq!(store.report().window_moved_from, Some(self.home));
        is_refused(&store)?;
        good(&store)?;
        store.close()?;
        drop(taken);
        plant(late);
        let found = self.after(&sim, &mut all);
        plant(Bug::None);
        match found {
            Err(error) if late != Bug::None => Ok((all, Some(error))),
            found => found.map(|()| (all, None)),
        }
    }

    fn after(&self, sim: &Arc<SimMedium>, all: &mut usize) -> Result<()> {
        for image in crashes(sim) {
            *all += 1;
            let store = self.open(&image)?;
            is_refused(&store)?;
            good(&store)?;
            let here = store.window().0;
            store.abandon();
            self.is_whole(&image)?;
            // Where it is taken once more, twice.
            let first = Taken::new(here);
            let again = SimMedium::from_image(&image);
            let store = Store::open_on(again.clone(), &self.options)?;
            is_refused(&store)?;
            good(&store)?;
            let here = store.window().0;
            store.close()?;
            let _second = Taken::new(here);
            self.is_whole(&again.state_now().image_latest())?;
            drop(first);
        }
        let last = SimMedium::from_image(&self.back(&sim.state_now().image_latest()));
        let store = Store::open_on(last.clone(), &self.options)?;
        self.pools(&store)?;
        store.pool("bad")?.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        store.close()?;
        for image in crashes(&last) {
            *all += 1;
            let store = self.open(&image)?;
            self.pools(&store)?;
            store.abandon();
        }
        Ok(())
    }

    fn closed(&self) -> Result<()> {
        let (all, lost) = self.explore(Bug::None)?;
        println!("{all} images");
        assert!(lost.is_none() && all > 20, "{lost:?}");
        Ok(())
    }
}

/// No value of the pool is shown: its log waits, and where it has moved its pointers are old.
fn is_refused(store: &Store) -> Result<()> {
    match store.pool_with("bad", Access::ReadOnly).and_then(|pool| values(&pool)) {
        Err(_) => Ok(()),
        Ok(_) => Err(Error::Aborted("it was shown while something waits".into())),
    }
}

fn good(store: &Store) -> Result<()> {
    let pool = store.pool("good")?;
    assert_eq!(values(&pool)?, (0..LEN).collect::<Vec<_>>());
    pool.write(|tx| tx.alloc(7u64).and_then(|value| tx.free(value)))
}

fn waits_for_a_file(kind: CrashKind, log_itself: bool) -> Result<Case> {
    let (mut case, root, log) = in_a_transaction(Durability::Power, kind)?;
    case.take_away(if log_itself { log } else { root });
    Ok(case)
}

#[test]
fn a_log_that_waits_for_a_damaged_file_moves_and_is_applied_when_it_is_back() -> Result<()> {
    waits_for_a_file(CrashKind::Process, false)?.closed()?;
    waits_for_a_file(CrashKind::Power, false)?.closed()
}

#[test]
fn a_log_whose_own_file_is_damaged_moves_and_is_applied_when_it_is_back() -> Result<()> {
    waits_for_a_file(CrashKind::Process, true)?.closed()
}

#[test]
fn planted_a_log_that_moved_and_is_read_at_its_home_is_not_applied() -> Result<()> {
    let case = waits_for_a_file(CrashKind::Process, false)?;
    assert!(case.explore(Bug::MovedLogAtHome)?.1.is_some());
    Ok(())
}

#[test]
fn planted_a_pool_that_is_rewritten_while_its_log_waits_is_found() -> Result<()> {
    let case = waits_for_a_file(CrashKind::Process, true)?;
    assert!(case.explore(Bug::WaitingRewritten)?.1.is_some());
    Ok(())
}

/// A psync of "bad" that has not come into its primary, which is damaged.
fn kept() -> Result<Case> {
    let base = window();
    let (sim, store) = sim(Durability::Power, base)?;
    let shadowed = PoolOptions { mode: PoolMode::Shadowed, ..small() };
    for name in ["bad", "good"] {
        list(&store, name, &shadowed, LEN)?.psync()?;
    }
    store.close()?;
    let store = Store::open_on(sim.clone(), &OpenOptions::default())?;
    let away = file_of(&store, Some("bad"), "primary");
    let pool = store.pool("bad")?;
    pool.write(|tx| push(tx, 100))?;
    pool.psync()?;
    pool.write(|tx| push(tx, 200))?;
    let start = sim.state_now().image_oldest();
    let expected = core::iter::once(100).chain(0..LEN).collect();
    let mut case =
        Case { start, home: base, options: OpenOptions::default(), away: None, expected };
    case.take_away(away);
    drop(pool);
    store.abandon();
    Ok(case)
}

#[test]
fn kept_psyncs_of_a_damaged_primary_move_and_come_into_it_when_it_is_back() -> Result<()> {
    kept()?.closed()
}

#[test]
fn planted_kept_psyncs_that_do_not_come_into_a_primary_that_has_moved_are_missed() -> Result<()> {
    assert!(kept()?.explore(Bug::KeptNotInMoved)?.1.is_some());
    Ok(())
}

fn sealed(at_rest: AtRest) -> Result<Case> {
    let base = window();
    let (sim, store) = sim(Durability::Power, base)?;
    let mut bytes: [u8; 32] = core::array::from_fn(|i| (i as u8) ^ 0x35);
    let key = Arc::new(Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key")));
    let mode = PoolMode::Shadowed;
    let protected = PoolOptions { mode, at_rest, key: Some(Arc::clone(&key)), ..small() };
    list(&store, "bad", &protected, LEN)?.psync()?;
    list(&store, "good", &small(), LEN)?;
    let away = file_of(&store, Some("bad"), "puddles");
    store.close()?;
    let options =
        OpenOptions { key: Some(key), accept_unprotected: true, ..OpenOptions::default() };
    // Moved once, so that generations are not those of new files.
    let taken = Taken::new(base);
    let store = Store::open_on(sim.clone(), &options)?;
    for name in ["bad", "good"] {
        store.pool(name)?.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
    }
    let home = store.window().0;
    store.close()?;
    drop(taken);
    let start = sim.state_now().image_latest();
    let mut case = Case { start, home, options, away: None, expected: (0..LEN).collect() };
    case.take_away(away);
    Ok(case)
}

#[test]
fn a_protected_pool_with_a_damaged_file_moves_and_is_whole_when_it_is_back() -> Result<()> {
    sealed(AtRest::Authenticated)?.closed()?;
    sealed(AtRest::Encryption)?.closed()
}

#[test]
fn planted_a_guessed_generation_refuses_a_protected_file_when_it_is_back() -> Result<()> {
    let case = sealed(AtRest::Authenticated)?;
    let _taken = Taken::new(case.home);
    let sim = SimMedium::from_image(&case.start);
    plant(Bug::GenerationGuessed);
    let store = Store::open_on(sim.clone(), &case.options);
    plant(Bug::None);
    store?.close()?;
    assert!(case.is_whole(&sim.state_now().image_latest()).is_err());
    Ok(())
}

/// Power failed at a level that does not cover it. Of the marks of "bad" none came to the medium.
fn not_covered() -> Result<Case> {
    let (mut case, root, _) = in_a_transaction(Durability::Process, CrashKind::Power)?;
    let mut bytes = case.start.file(&root).expect("it is there");
    let geometry = HeapGeometry::new(bytes.len() as u64, true).expect("a heap");
    assert!(geometry.tiny >= PAGE_SIZE);
    let marks = &mut bytes[geometry.tiny as usize..geometry.hints as usize];
    assert!(marks.iter().filter(|mark| **mark != 0).count() as u64 > LEN);
    marks.fill(0);
    case.start.set_file(&root, &bytes);
    Ok(case)
}

/// The values of the pool for a caller that answers for it, after the store moved.
fn taken_as_it_is(bug: Bug) -> Result<Vec<u64>> {
    let case = not_covered()?;
    let taken = Taken::new(case.home);
    let sim = SimMedium::from_image(&case.start);
    let store = Store::open_on(sim.clone(), &case.options)?;
    assert_eq!(store.report().window_moved_from, Some(case.home));
    let refused = store.pool("bad").map(drop);
    assert!(
        matches!(&refused, Err(Error::Store(StoreError::PoolNotCovered { .. }))),
        "{refused:?}"
    );
    store.close()?;
    let image = sim.state_now().image_latest();
    let as_is = OpenOptions { power_loss: PowerLossPolicy::AsIs, ..case.options.clone() };
    plant(bug);
    // SAFETY: all that the image lacks are marks.
    let store = unsafe { Store::open_torn(SimMedium::from_image(&image), &as_is) };
    let found = store.and_then(|store| values(&store.pool("bad")?));
    plant(Bug::None);
    drop(taken);
    assert!(found.as_ref().map_or(true, |found| bug != Bug::None || *found == case.expected));
    found
}

#[test]
fn a_pool_that_a_loss_of_power_may_have_torn_moves_and_is_decided_about_afterwards() -> Result<()> {
    taken_as_it_is(Bug::None).map(drop)
}

#[test]
fn planted_blocks_that_are_rewritten_by_marks_that_did_not_arrive_lead_nowhere() {
    assert!(taken_as_it_is(Bug::MarksBelievedEarly).is_err());
}

#[test]
fn logs_that_are_set_aside_move_and_are_decided_about_afterwards() -> Result<()> {
    let dir = with_log_set_aside()?;
    let reader = OpenOptions::read_only();
    let home = Store::open_with(dir.path(), &reader)?.window().0;
    let _taken = Taken::new(home);
    let store = Store::open(dir.path())?;
    assert_eq!(store.report().window_moved_from, Some(home));
    let text = store.pool("p").map(drop).expect_err("a log waits").to_string();
    assert!(text.contains("cenote logs"), "{text}");
    drop(store.pool("other")?);
    let aside = store.undecided_logs()?;
    assert_eq!(aside.len(), 1);
    assert!(store.apply_logs(aside[0].client).is_err(), "it names what is not its own");
    store.close()?;
    let store = Store::open(dir.path())?;
    assert!(store.pool("p").is_err());
    store.discard_logs(aside[0].client)?;
    assert_eq!(store.torn_pools(), ["p"]);
    // SAFETY: the pool holds one node, which no transaction was writing.
    unsafe { store.declare_whole("p") }?;
    let pool = store.pool("p")?;
    let view = pool.read()?;
    let root = view.root::<crate::doubt::Node>()?.expect("set");
    assert_eq!(view.get(root)?.value, 7);
    drop(view);
    drop(pool);
    store.close()?;
    // The log's puddles are gone, and the store is as any.
    let store = Store::open(dir.path())?;
    assert!(store.puddle_records().iter().all(|puddle| puddle.role != Role::LogSpace));
    drop(store.pool("p")?);
    Ok(())
}

#[test]
fn a_pool_in_shadowed_mode_that_a_log_waits_for_keeps_its_store_at_home() -> Result<()> {
    let base = window();
    let (sim, store) = sim(Durability::Power, base)?;
    let pool = list(&store, "bad", &PoolOptions { mode: PoolMode::Shadowed, ..small() }, LEN)?;
    pool.psync()?;
    let (mut image, mut log) = (None, String::new());
    let ended: Result<()> = pool.write(|tx| {
        push(tx, 200)?;
        log = file_of(&store, None, "puddles");
        image = Some(sim.image_now(CrashKind::Process));
        Err(Error::Aborted("it never ends".into()))
    });
    assert!(ended.is_err());
    drop(pool);
    store.abandon();
    let mut image = image.expect("taken");
    assert!(image.remove(&log));
    let _taken = Taken::new(base);
    let stays = Store::open_on(SimMedium::from_image(&image), &OpenOptions::default());
    let stays = stays.map(drop).expect_err("its shadow has more than its primary");
    assert!(
        matches!(&stays, Error::Open(OpenError::WindowStays { why, .. })
            if why.contains("\"bad\"") && why.contains("cenote logs")),
        "{stays}"
    );
    Ok(())
}

#[test]
fn a_log_that_moved_is_applied_by_the_session_that_gets_its_file_back() -> Result<()> {
    let case = waits_for_a_file(CrashKind::Process, false)?;
    let sim = SimMedium::from_image(&case.start);
    let taken = Taken::new(case.home);
    let store = Store::open_on(sim.clone(), &case.options)?;
    let aside = store.undecided_logs()?;
    assert_eq!(aside.len(), 1);
    assert!(store.apply_logs(aside[0].client).is_err(), "its file is away");
    case.put_back(&sim);
    let before = sim.trace_len();
    store.apply_logs(aside[0].client)?;
    assert!(store.undecided_logs()?.is_empty());
    case.pools(&store)?;
    store.close()?;
    let mut all = 0;
    for events in before..=sim.trace_len() {
        let state = sim.state_after(events);
        for image in [state.image_oldest(), state.image_latest(), state.image_process()] {
            all += 1;
            let store = case.open(&image)?;
            case.pools(&store)?;
            store.abandon();
        }
    }
    drop(taken);
    println!("{all} images");
    assert!(all > 20);
    Ok(())
}

/// A crash in a transaction on a pool whose puddles, moved each by another distance, were rewritten
/// when they were touched, of which the catalog has not heard; and a reader of that.
fn rewritten_and_replayed(bug: Bug) -> Result<Vec<u64>> {
    let (sim, store) = sim(Durability::Power, window())?;
    for name in ["p", "other"] {
        drop(list(&store, name, &small(), 5000)?);
    }
    store.randomize_pool("p")?;
    let (pool, other) = (store.pool("p")?, store.pool("other")?);
    other.write(|tx| push(tx, 100))?;
    let mut image = None;
    values(&pool)?;
    let ended: Result<()> = pool.write(|tx| {
        let mut at = tx.root::<Node>()?;
        while let Some(this) = at {
            at = tx.get(this)?.next;
            tx.set(this, field!(Node, next), None)?;
        }
        image = Some(sim.image_now(CrashKind::Process));
        Err(Error::Aborted("it never ends".into()))
    });
    assert!(ended.is_err());
    drop((pool, other));
    store.abandon();
    let image = image.expect("taken");
    plant(bug);
    let store =
        Store::open_on(SimMedium::from_image(&image), &OpenOptions::read_only()).expect("opened");
    let read = || values(&store.pool_with("p", Access::ReadOnly)?);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    plant(Bug::None);
    found.unwrap_or_else(|_| Err(Error::Aborted("the way back is another".into())))
}

#[test]
fn a_reader_does_not_rewrite_what_is_rewritten_once_more() -> Result<()> {
    assert_eq!(rewritten_and_replayed(Bug::None)?, (0..5000).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn planted_a_reader_that_rewrites_twice_is_found() {
    assert!(rewritten_and_replayed(Bug::RewrittenHeldAsOld).is_err());
}

/// A pool whose primary comes back in a later session, and each loss of power in that: how many
/// show what no psync covers.
fn restored_late(bug: Bug) -> Result<(usize, usize)> {
    let case = kept()?;
    let sim = SimMedium::from_image(&case.start);
    Store::open_on(sim.clone(), &case.options)?.close()?;
    let sim = SimMedium::from_image(&case.back(&sim.state_now().image_latest()));
    plant(bug);
    let store = Store::open_on(sim.clone(), &case.options)?;
    plant(Bug::None);
    case.holds(&store.pool_with("bad", Access::ReadOnly)?)?;
    store.abandon();
    let (mut all, mut lost) = (0, 0);
    for events in 0..=sim.trace_len() {
        all += 1;
        let store = case.open(&sim.state_after(events).image_oldest())?;
        lost += usize::from(case.holds(&store.pool("bad")?).is_err());
        store.abandon();
    }
    Ok((all, lost))
}

#[test]
fn a_shadow_that_is_restored_late_goes_back_again_after_another_loss_of_power() -> Result<()> {
    let (all, lost) = restored_late(Bug::None)?;
    assert!(all > 20 && lost == 0, "{lost} of {all}");
    Ok(())
}

#[test]
fn planted_a_restored_shadow_that_counts_as_durable_at_once_is_found() -> Result<()> {
    assert!(restored_late(Bug::RestoredNotLeased)?.1 > 0);
    Ok(())
}
