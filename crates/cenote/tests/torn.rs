//! Pools whose logs were discarded: the store remembers it, in whatever way a pool comes to another
//! session, until a caller declares it whole.

use crate::doubt::{Node, with_log_set_aside, with_root};
use crate::support::directory;
use cenote::{
    Access, DamagePolicy, Durability, Error, ExportOptions, FormatOptions, ImportOptions,
    MediumOptions, OpenOptions, Pool, PoolOptions, PowerLossPolicy, Reader, RealMedium, Result,
    Store,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::StoreError;
use std::path::Path;
use std::sync::Arc;

/// Whether the error says that the pool may be torn, and what to do.
fn says_torn(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Store(StoreError::PoolTorn { .. }))
        && ["restore", "remove", "open_torn", "declare_whole"]
            .iter()
            .all(|word| text.contains(word))
}

fn refused<T>(result: Result<T>) {
    let error = result.err().expect("half of a transaction may be there");
    assert!(says_torn(&error), "{error:?}");
}

fn value(pool: &Pool) -> Result<u64> {
    let view = pool.read()?;
    Ok(view.get(view.root::<Node>()?.expect("set"))?.value)
}

/// A store whose logs about pool "p" were discarded.
fn discarded() -> Result<tempfile::TempDir> {
    let dir = with_log_set_aside()?;
    let store = Store::open(dir.path())?;
    for one in store.undecided_logs()? {
        store.discard_logs(one.client)?;
    }
    refused(store.pool("p"));
    store.close()?;
    Ok(dir)
}

/// Whether the next program gets a value of the pool: it must not.
fn next_is_shown(path: &Path, name: &str) -> bool {
    let store = Store::open(path).unwrap();
    let pool = store.pool(name);
    pool.is_ok_and(|pool| pool.read().is_ok())
}

#[test]
fn a_pool_whose_logs_were_discarded_is_refused_in_every_session_until_it_is_declared_whole()
-> Result<()> {
    let dir = discarded()?;
    let verified = OpenOptions { verify_values: true, ..OpenOptions::default() };
    for options in [OpenOptions::read_only(), OpenOptions::default(), verified] {
        let store = Store::open_with(dir.path(), &options)?;
        assert_eq!(store.torn_pools(), ["p"]);
        assert!(store.undecided_logs()?.is_empty());
        for access in [Access::ReadOnly, Access::ReadWrite] {
            if access == Access::ReadOnly || options.access == access {
                refused(store.pool_with("p", access));
            }
        }
        // The other pool is none of its business, and can be traced and collected.
        let other = store.pool_with("other", Access::ReadOnly)?;
        assert_eq!(value(&other)?, 7);
        drop(other);
        store.close()?;
    }
    // As blocks it can be looked at, and a check that finds nothing ends nothing.
    for damage in [DamagePolicy::ReadOnly, DamagePolicy::SkipDamaged] {
        let store =
            Store::open_with(dir.path(), &OpenOptions { damage, ..OpenOptions::default() })?;
        let pool = store.pool("p")?;
        refused(pool.read());
        refused(pool.write(|_| Ok::<_, Error>(())));
        refused(pool.named_root::<Node>("first"));
        assert!(pool.trim().is_err() && pool.collect().is_err());
        let report = pool.check()?;
        assert!(report.stats.blocks > 0 && report.damage.is_empty(), "{report:?}");
        drop(pool);
        store.close()?;
        assert!(!next_is_shown(dir.path(), "p"), "{damage:?}");
    }
    // A caller that answers for it is shown it, and answers for its own session.
    let medium = RealMedium::open(dir.path(), &MediumOptions::default())?;
    // SAFETY: what is read is one node, which no transaction was writing.
    let store = unsafe { Store::open_torn(Arc::new(medium), &OpenOptions::default()) }?;
    assert_eq!(value(&store.pool("p")?)?, 7);
    store.close()?;
    assert!(!next_is_shown(dir.path(), "p"));
    let store = Store::open(dir.path())?;
    // SAFETY: the pool holds one node, which no transaction was writing.
    unsafe {
        assert!(matches!(
            store.declare_whole("q"),
            Err(Error::Store(StoreError::PoolUnknown { .. }))
        ));
        store.declare_whole("p")?;
        // Once more is nothing.
        store.declare_whole("p")?;
    }
    assert_eq!(value(&store.pool("p")?)?, 7);
    store.close()?;
    assert!(next_is_shown(dir.path(), "p"));
    Ok(())
}

#[test]
fn a_torn_pool_that_is_removed_leaves_its_name_to_a_whole_one() -> Result<()> {
    let dir = discarded()?;
    let store = Store::open(dir.path())?;
    store.remove_pool("p")?;
    with_root(&store.create_pool("p", &PoolOptions::default())?)?;
    assert!(store.torn_pools().is_empty());
    store.close()?;
    assert!(next_is_shown(dir.path(), "p"));
    Ok(())
}

/// Clones, archives, imports, backups and new addresses of a torn pool, each opened by the next
/// program; the first that is shown.
fn copy_that_is_shown(bug: Bug) -> Result<Option<&'static str>> {
    let dir = discarded()?;
    let store = Store::open(dir.path())?;
    // Traces what is due.
    drop(store.pool("other")?);
    plant(bug);
    store.clone_pool("p", "clone")?;
    store.randomize_pool("p")?;
    let (archive, _) = store.export(&["p", "other"], Vec::new(), ExportOptions::default())?;
    let names = vec!["torn".to_owned(), "whole".to_owned()];
    store.import(&archive[..], ImportOptions { names, ..ImportOptions::default() })?;
    let (backup, elsewhere) = (directory(), directory());
    let copy = backup.path().join("copy");
    let _ = store.backup(&copy)?;
    store.close()?;
    let other = Store::open(elsewhere.path())?;
    other.import(&archive[..], ImportOptions::default())?;
    other.close()?;
    plant(Bug::None);
    assert!(next_is_shown(dir.path(), "whole") && next_is_shown(elsewhere.path(), "other"));
    let shown = [
        (dir.path(), "clone", "clone"),
        (dir.path(), "torn", "import"),
        (elsewhere.path(), "p", "import elsewhere"),
        (&copy, "p", "backup"),
        (dir.path(), "p", "new addresses"),
    ];
    Ok(shown.into_iter().find(|(path, name, _)| next_is_shown(path, name)).map(|(.., what)| what))
}

#[test]
fn copies_of_a_torn_pool_are_torn() -> Result<()> {
    assert_eq!(copy_that_is_shown(Bug::None)?, None);
    Ok(())
}

#[test]
fn planted_torn_pools_that_are_forgotten_are_found() -> Result<()> {
    assert_eq!(copy_that_is_shown(Bug::TornNotCopied)?, Some("clone"));
    let dir = with_log_set_aside()?;
    let store = Store::open(dir.path())?;
    plant(Bug::TornForgotten);
    let discarded =
        store.undecided_logs()?.into_iter().try_for_each(|one| store.discard_logs(one.client));
    plant(Bug::None);
    discarded?;
    store.close()?;
    assert!(next_is_shown(dir.path(), "p"), "planted: nothing remembers it");
    Ok(())
}

/// A caller of `open_torn` that takes a pool as it is after a loss of power does so for itself.
#[test]
fn a_pool_that_one_session_took_as_it_is_is_torn_for_the_next_one() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1900_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let small = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
    let pool = store.create_pool("p", &small)?;
    with_root(&pool)?;
    store.clone().abandon();
    drop((pool, store));
    let after: Arc<dyn Medium> = SimMedium::from_image(&sim.image_now(CrashKind::Power));
    let as_is = OpenOptions { power_loss: PowerLossPolicy::AsIs, ..OpenOptions::default() };
    // SAFETY: no value of it is read.
    let store = unsafe { Store::open_torn(Arc::clone(&after), &as_is) }?;
    assert!(store.pool("p")?.is_writable());
    store.close()?;
    let store = Store::open_on(after, &OpenOptions::default())?;
    assert!(store.report().not_covered.is_empty(), "{:?}", store.report());
    refused(store.pool("p"));
    Ok(())
}

/// What one session after another left to a loss of power is decided pool by pool.
#[test]
fn a_pool_is_taken_as_it_is_and_of_others_nothing_is_decided() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let format =
        FormatOptions { window_base: Some(0x1900_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(sim.clone(), &format)?;
    let mut medium = sim;
    for name in ["p", "q"] {
        let store = Store::open_on(medium.clone(), &OpenOptions::default())?;
        let small = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
        let pool = store.create_pool(name, &small)?;
        with_root(&pool)?;
        store.clone().abandon();
        drop((pool, store));
        medium = SimMedium::from_image(&medium.image_now(CrashKind::Power));
    }
    let store = Store::open_on(medium.clone(), &OpenOptions::default())?;
    let not_covered = |store: &Store| {
        store.report().not_covered.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(not_covered(&store), ["p", "q"]);
    // Its logs wait for a decision, which a declaration is not.
    // SAFETY: it is refused.
    let declared = unsafe { store.declare_whole("q") };
    assert!(matches!(declared, Err(Error::Store(StoreError::PoolNotCovered { .. }))));
    store.close()?;
    let as_is = OpenOptions {
        power_loss: PowerLossPolicy::AsIs,
        as_is_pools: vec!["q".into()],
        ..OpenOptions::default()
    };
    // SAFETY: no value of it is read.
    let store = unsafe { Store::open_torn(medium.clone(), &as_is) }?;
    assert!(store.pool("p").is_err(), "the caller does not answer for it");
    // SAFETY: one transaction was done, and none was running.
    unsafe { store.declare_whole("q") }?;
    store.close()?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    assert_eq!(not_covered(&store), ["p"]);
    assert!(store.pool("p").is_err());
    value(&store.pool("q")?)?;
    Ok(())
}
