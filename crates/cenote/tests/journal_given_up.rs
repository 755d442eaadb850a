//! A journal of pools that cannot be used, and a caller that gives it up: a new one is made, pools
//! in shadowed mode may be torn from then on, and no crash shows them before that is recorded.
//!
//! On a real directory: each way to spoil the journal, after each way to end a session. On the
//! simulated medium: each crash of an open that gives it up.

use crate::shadowed::{lose_power, make, step_of, steps};
use cenote::{
    Access, Durability, Error, FormatOptions, JournalPolicy, OpenOptions, PoolMode, PoolOptions,
    Result, Store,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Image, SimMedium, SimOptions};
use cenote_store::StoreError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const JOURNAL: &str = "journal.pools";

/// How the last session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Closed,
    Killed,
    PowerLost,
}

/// What is done to the journal then.
#[derive(Clone, Copy, Debug)]
enum Harm {
    PutBack,
    Away,
    Cut,
    Headers,
}

const ENDS: [End; 3] = [End::Closed, End::Killed, End::PowerLost];
const HARMS: [Harm; 4] = [Harm::PutBack, Harm::Away, Harm::Cut, Harm::Headers];
/// Of these each is tried if this is set; without it every harm, and every end with two of them.
const ALL: &str = "CENOTE_GIVEN_UP_ALL";

fn ways() -> Vec<(End, Harm)> {
    let all = std::env::var_os(ALL).is_some();
    let some =
        |end, number: usize| all || end == End::Closed && number < 3 || number.is_multiple_of(3);
    let numbered = HARMS.into_iter().enumerate();
    let ways = ENDS
        .into_iter()
        .flat_map(|end| numbered.clone().map(move |(number, harm)| (end, number, harm)));
    ways.filter(|way| some(way.0, way.1)).map(|(end, _, harm)| (end, harm)).collect()
}

fn direct() -> PoolOptions {
    PoolOptions { mode: PoolMode::Direct, ..PoolOptions::default() }
}

/// A pool in shadowed mode at step 12, beside one in direct mode; and the journal after step 5.
fn spoilt(dir: &Path, end: End, harm: Harm) -> Result<Vec<u8>> {
    let journal = dir.join(JOURNAL);
    let store = Store::open(dir)?;
    store.create_pool("direct", &direct())?;
    let pool = make(&store, "s");
    steps(&pool, 1, 5);
    pool.psync()?;
    drop(pool);
    store.close()?;
    let older = std::fs::read(&journal).expect("it is there");
    let store = Store::open(dir)?;
    let pool = store.pool("s")?;
    steps(&pool, 6, 11);
    pool.psync()?;
    steps(&pool, 12, 12);
    pool.psync()?;
    drop(pool);
    match end {
        End::Closed => store.close()?,
        End::Killed => store.abandon(),
        End::PowerLost => {
            store.abandon();
            lose_power(dir, 11);
        }
    }
    match harm {
        Harm::PutBack => std::fs::write(&journal, &older),
        Harm::Away => std::fs::remove_file(&journal),
        Harm::Cut => std::fs::OpenOptions::new()
            .write(true)
            .open(&journal)
            .and_then(|file| file.set_len(100)),
        Harm::Headers => {
            let mut bytes = std::fs::read(&journal).expect("it is there");
            bytes[..8192].iter_mut().for_each(|byte| *byte ^= 0x5a);
            std::fs::write(&journal, bytes)
        }
    }
    .expect("written");
    Ok(older)
}

fn giving_up() -> OpenOptions {
    OpenOptions { journal: JournalPolicy::GiveUp, ..OpenOptions::default() }
}

fn is_torn<T>(found: Result<T>) -> bool {
    matches!(found, Err(Error::Store(StoreError::PoolTorn { .. })))
}

/// Whether the pool is refused for its journal, and the error says what can be done.
fn is_refused(store: &Store, end: End) -> bool {
    match store.pool("s") {
        Ok(_) => false,
        Err(_) if end == End::PowerLost => true,
        Err(error) => error.to_string().contains("--give-up-journal"),
    }
}

/// A pool whose shadow has everything: it is declared whole, and the first psync has what was not
/// psynced before.
fn declared_whole(dir: &Path) -> Result<()> {
    let store = Store::open(dir)?;
    // SAFETY: no transaction was running, and no file but the journal was changed.
    unsafe { store.declare_whole("s") }?;
    let pool = store.pool("s")?;
    assert_eq!(step_of(&pool), 12);
    steps(&pool, 13, 14);
    pool.psync()?;
    drop(pool);
    store.abandon();
    lose_power(dir, 9);
    let store = Store::open(dir)?;
    assert!(store.torn_pools().is_empty());
    assert_eq!(step_of(&store.pool("s")?), 14);
    store.close()
}

#[test]
fn pools_whose_journal_is_given_up_are_refused_until_they_are_declared_whole() -> Result<()> {
    for (end, harm) in ways() {
        println!("{end:?}, {harm:?}");
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let older = spoilt(dir, end, harm)?;
        // A caller that says nothing changes nothing, nor does a reader.
        for options in [
            OpenOptions::default(),
            OpenOptions { access: Access::ReadOnly, ..giving_up() },
            OpenOptions::default(),
        ] {
            let store = Store::open_with(dir, &options)?;
            assert!(store.torn_pools().is_empty());
            if options.access.writes() {
                assert!(is_refused(&store, end));
                store.pool("direct")?;
            }
            // What it inherited of the pool waits for the journal.
            store.close()?;
        }
        let store = Store::open_with(dir, &giving_up())?;
        assert_eq!(store.torn_pools(), ["s"]);
        assert!(is_torn(store.pool("s")));
        store.pool("direct")?;
        let new = make(&store, "new");
        steps(&new, 1, 3);
        new.psync()?;
        drop(new);
        if end == End::Killed {
            // What the dead process left in memory alone is psynced by this close.
            store.close()?;
        } else {
            store.abandon();
            lose_power(dir, 5);
        }
        // The next sessions are refused the pool, and nothing else, whatever they ask.
        for options in [OpenOptions::default(), giving_up()] {
            let store = Store::open_with(dir, &options)?;
            assert_eq!(store.torn_pools(), ["s"]);
            assert!(is_torn(store.pool("s")));
            assert_eq!(step_of(&store.pool("new")?), 3);
            store.close()?;
        }
        // The journal that was given up is older than all.
        let now = std::fs::read(dir.join(JOURNAL)).expect("it is there");
        std::fs::write(dir.join(JOURNAL), older).expect("written");
        let store = Store::open(dir)?;
        assert!(store.pool("new").is_err());
        store.close()?;
        std::fs::write(dir.join(JOURNAL), now).expect("written");
        if end != End::PowerLost {
            declared_whole(dir)?;
        }
    }
    Ok(())
}

/// A pool that was killed at step 13, psynced up to step 12. Its journal is away while two sessions
/// close the store, and comes back. The steps that a backup of the store shows, which is open to
/// look; and that the store shows after a psync and a loss of power.
fn away_and_back(bug: Bug) -> Result<[u64; 2]> {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let journal = path.join(JOURNAL);
    let store = Store::open(&path)?;
    store.create_pool("direct", &direct())?;
    let pool = make(&store, "s");
    steps(&pool, 1, 5);
    pool.psync()?;
    drop(pool);
    store.close()?;
    let store = Store::open(&path)?;
    let pool = store.pool("s")?;
    steps(&pool, 6, 12);
    let before = primaries(&path);
    pool.psync()?;
    steps(&pool, 13, 13);
    drop(pool);
    store.abandon();
    // Only the journal has that psync, as if the thread that applies it had not come to it. The
    // journal holds the record either way: its half is not full.
    for (file, bytes) in before {
        std::fs::write(file, bytes).expect("written");
    }
    let bytes = std::fs::read(&journal).expect("it is there");
    std::fs::remove_file(&journal).expect("removed");
    plant(bug);
    for first in [true, false] {
        let store = Store::open(&path)?;
        assert_eq!(store.report().clean, !first, "a close is a close");
        assert!(is_refused(&store, End::Killed));
        store.pool("direct")?;
        store.close()?;
    }
    std::fs::write(&journal, bytes).expect("written");
    let looked =
        Store::open_with(&path, &OpenOptions { access: Access::ReadOnly, ..Default::default() })?;
    let made = looked.backup(&copy)?.durable()?;
    assert!(made.damage.is_empty(), "{:?}", made.damage);
    drop(looked);
    plant(Bug::None);
    let of_copy = Store::open(&copy)?;
    let copied = step_of(&of_copy.pool("s")?);
    of_copy.close()?;
    let store = Store::open(&path)?;
    let pool = store.pool("s")?;
    assert_eq!(step_of(&pool), 13, "the shadow has all");
    pool.psync()?;
    drop(pool);
    store.abandon();
    lose_power(&path, 3);
    Ok([copied, step_of(&Store::open(&path)?.pool("s")?)])
}

/// The files of primaries, with what is in them.
fn primaries(store: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(store.join("primary")).expect("there").flatten();
    files.map(|file| (file.path(), std::fs::read(file.path()).expect("read"))).collect()
}

/// What this comes to; `None`: a pool is not sound, or refused.
fn come_to<T>(run: impl FnOnce() -> Result<T> + std::panic::UnwindSafe) -> Option<T> {
    let found = std::panic::catch_unwind(run);
    plant(Bug::None);
    found.ok().and_then(Result::ok)
}

#[test]
fn a_store_whose_journal_is_away_is_closed_and_all_is_there_when_it_is_back() -> Result<()> {
    assert_eq!(away_and_back(Bug::None)?, [12, 13]);
    for bug in [Bug::LeaseEndedUnpsynced, Bug::CopyWithoutJournal] {
        assert_ne!(come_to(|| away_and_back(bug)), Some([12, 13]), "{bug:?}");
    }
    Ok(())
}

/// A store on the simulated medium that was killed, or lost power, at step 4, psynced up to step 3;
/// and its journal after step 1.
fn ended(base: u64, power: bool) -> Result<(Image, Vec<u8>)> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(base), window_len: 64 << 20, ..Default::default() };
    cenote_store::format(medium.clone(), &format).expect("formatted");
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = make(&store, "s");
    steps(&pool, 1, 1);
    pool.psync()?;
    drop(pool);
    store.close()?;
    let state = sim.state_now();
    let older = state.image_process().file(JOURNAL).expect("it is there");
    let closed = SimMedium::from_image(&state.image_process());
    let medium: Arc<dyn Medium> = closed.clone();
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.pool("s")?;
    steps(&pool, 2, 3);
    pool.psync()?;
    steps(&pool, 4, 4);
    let state = closed.state_now();
    let image = if power { state.image_oldest() } else { state.image_process() };
    drop(pool);
    store.abandon();
    Ok((image, older))
}

/// The same, with that journal.
fn image(base: u64, power: bool) -> Result<Image> {
    let (mut image, older) = ended(base, power)?;
    image.set_file(JOURNAL, &older);
    Ok(image)
}

/// The step of a pool, after its journal came back; and after a psync and a loss of power.
fn brought_back(mut image: Image, journal: &[u8]) -> Result<[u64; 2]> {
    image.set_file(JOURNAL, journal);
    let sim = SimMedium::from_image(&image);
    let store = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default())?;
    let pool = store.pool("s")?;
    let step = step_of(&pool);
    pool.psync()?;
    drop(pool);
    let lost = sim.state_now().image_oldest();
    store.abandon();
    let sim: Arc<dyn Medium> = SimMedium::from_image_unrecorded(&lost);
    let store = Store::open_on(sim, &OpenOptions::default())?;
    let after = step_of(&store.pool("s")?);
    store.abandon();
    Ok([step, after])
}

/// Crashes of a session that closes the store while the journal is away: after how many of them the
/// pool is not what it was, of how many.
fn crashes_beside_a_journal(base: u64, bug: Bug) -> Result<(usize, usize)> {
    let (mut image, _) = ended(base, false)?;
    let journal = image.file(JOURNAL).expect("it is there");
    assert!(image.remove(JOURNAL));
    let sim = SimMedium::from_image(&image);
    plant(bug);
    Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default())?.close()?;
    plant(Bug::None);
    let (mut wrong, mut all) = (0, 0);
    for events in 0..=sim.trace_len() {
        let state = sim.state_after(events);
        let closed = events == sim.trace_len();
        for (lost, image) in [(false, state.image_process()), (true, state.image_oldest())] {
            all += 1;
            let [step, after] = brought_back(image, &journal)?;
            // As long as the store was not closed a loss of power brings the last psync.
            let right = step == 4 || lost && !closed && step == 3;
            wrong += usize::from(!right || after != step);
        }
    }
    Ok((wrong, all))
}

#[test]
fn no_crash_of_a_close_without_a_journal_costs_what_was_stored() -> Result<()> {
    let (wrong, all) = crashes_beside_a_journal(0x15b2_0000_0000, Bug::None)?;
    println!("{all} images");
    assert!(wrong == 0 && all > 20, "{wrong} of {all}");
    let planted = || crashes_beside_a_journal(0x15b3_0000_0000, Bug::LeaseEndedUnpsynced);
    assert!(come_to(planted).is_none_or(|(wrong, _)| wrong > 0));
    Ok(())
}

/// Opens an image as a program does that says nothing, and asks for the pool: whether it is shown.
fn is_shown(image: &Image) -> bool {
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(image);
    let store = Store::open_on(medium, &OpenOptions::default()).expect("a store");
    store.pool("s").is_ok_and(|pool| pool.read().is_ok())
}

/// Images of crashes of an open that gives the journal up: how many there are, and how many of them
/// show the pool.
fn crashes(base: u64, bug: Bug) -> Result<(usize, usize)> {
    let (mut all, mut shown, mut seed) = (0, 0, 0x5eed_u64);
    for power in [false, true] {
        let start = image(base, power)?;
        assert!(!is_shown(&start));
        let sim = SimMedium::from_image(&start);
        let medium: Arc<dyn Medium> = sim.clone();
        plant(bug);
        let opened = Store::open_on(medium, &giving_up());
        plant(Bug::None);
        let store = opened?;
        assert_eq!(store.torn_pools(), ["s"]);
        let events_len = sim.trace_len();
        let last = sim.state_now().image_oldest();
        store.abandon();
        for events in 0..=events_len {
            let state = sim.state_after(events);
            let mut images =
                vec![state.image_oldest(), state.image_latest(), state.image_process()];
            images.push(state.image(&mut |_, alternatives| {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize % alternatives
            }));
            for image in images {
                all += 1;
                shown += usize::from(is_shown(&image));
            }
        }
        // Where it is done once more, it comes to the same.
        let again: Arc<dyn Medium> = SimMedium::from_image_unrecorded(&last);
        let store = Store::open_on(again, &giving_up())?;
        assert_eq!(store.torn_pools(), ["s"]);
        assert!(is_torn(store.pool("s")));
    }
    Ok((all, shown))
}

#[test]
fn no_crash_of_giving_a_journal_up_shows_its_pools() -> Result<()> {
    let (all, shown) = crashes(0x15b0_0000_0000, Bug::None)?;
    println!("{all} images");
    assert_eq!(shown, 0);
    Ok(())
}

#[test]
fn planted_pools_that_are_torn_when_the_new_journal_is_there_are_shown() -> Result<()> {
    assert!(crashes(0x15b1_0000_0000, Bug::GivenUpLate)?.1 > 0);
    Ok(())
}
