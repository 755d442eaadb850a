//! The same pool imported twice into one process, with pointers between the copies, both touched
//! for the first time by threads that cross from one to the other.

use super::threads::bounded;
use super::{Bank, KINDS, look, look_at, open, prepare, seeds, transfer, whole};
use crate::common::{directory, random};
use cenote::{
    Access, Backend, Error, ExportOptions, ImportOptions, Pool, Ptr, Reader, Result, Store, field,
};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::{ended, task, with_task};
use std::panic::resume_unwind;

/// The other pool's bank, as a pointer in this one says.
fn elsewhere(pool: &Pool) -> Result<Ptr<Bank>> {
    let view = pool.read()?;
    let bank = view.get(view.root::<Bank>()?.expect("a bank"))?;
    Ok(bank.elsewhere.expect("set"))
}

/// Both ways between two pools.
fn cross(store: &Store, [a, b]: [&Pool; 2]) -> Result<()> {
    store.write(&[a, b], |tx| -> Result<()> {
        let (in_a, in_b) = (tx.root_in::<Bank>(a, 0)?, tx.root_in::<Bank>(b, 0)?);
        tx.set(in_a.expect("a bank"), field!(Bank, elsewhere), in_b)?;
        tx.set(in_b.expect("a bank"), field!(Bank, elsewhere), in_a)
    })
}

/// What threads do to both. A pointer of one copy is none of the other.
fn touch(store: &Store, names: [&str; 2], seed: u64) -> Result<()> {
    let mut seed = seed;
    let (a, b) = (store.pool(names[0])?, store.pool(names[1])?);
    for _ in 0..3 {
        match random(&mut seed) % 4 {
            0 => {
                let far = elsewhere(&a)?;
                let (in_a, in_b) = (a.read()?, b.read()?);
                assert!(matches!(in_a.get(far), Err(Error::Dangling { .. })), "of the other copy");
                look_at(&in_b, in_b.get(far)?)?;
            }
            1 => store.write(&[&a, &b], |tx| -> Result<()> {
                let bank = tx.root_in::<Bank>(&a, 0)?.expect("a bank");
                let far = tx.get(bank)?.elsewhere.expect("set");
                assert_eq!(tx.root_in::<Bank>(&b, 0)?, Some(far));
                look_at(tx, tx.get(far)?)?;
                let back = tx.get(far)?.elsewhere;
                assert_eq!(back, Some(bank));
                Ok(())
            })?,
            2 => assert!(a.check()?.is_sound()),
            _ => drop(b.write(|tx| transfer(tx, &mut seed))?),
        }
    }
    Ok(())
}

fn round(seed: u64) -> Result<()> {
    round_with(seed, Bug::None)
}

/// The same with a bug in every thread.
fn round_with(seed: u64, bug: Bug) -> Result<()> {
    let dir = directory();
    let kind = KINDS[seed as usize % KINDS.len()];
    prepare(dir.path(), kind, seed)?;
    let store = open(dir.path(), Access::ReadWrite, Backend::Signal)?;
    // The original leads to a copy of itself, and back; both go into one archive, twice.
    store.clone_pool("bank", "twin")?;
    cross(&store, [&store.pool("bank")?, &store.pool("twin")?])?;
    let (archive, _) = store.export(&["bank", "twin"], Vec::new(), ExportOptions::default())?;
    let mut copies = Vec::new();
    for copy in ["first", "second"] {
        let names = vec![format!("{copy} bank"), format!("{copy} twin")];
        let options = ImportOptions { names: names.clone(), ..ImportOptions::default() };
        store.import(archive.as_slice(), options)?;
        copies.push(names);
    }
    let copies = &copies;
    plant(bug);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let store = &store;
                let names = &copies[thread as usize % 2];
                let names = match thread < 2 {
                    true => [names[0].as_str(), names[1].as_str()],
                    // As another thread has them the other way round.
                    false => [names[1].as_str(), names[0].as_str()],
                };
                scope.spawn(move || {
                    plant(bug);
                    touch(store, names, seed * 10 + thread)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    // From one import to the other, while pools of both may be pending still.
    let all = [store.pool("first bank")?, store.pool("second twin")?];
    cross(&store, [&all[0], &all[1]])?;
    let far = elsewhere(&all[0])?;
    look_at(&all[1].read()?, all[1].read()?.get(far)?)?;
    drop(all);
    store.randomize_pool("second twin")?;
    let all = [store.pool("first bank")?, store.pool("second twin")?];
    assert_ne!(elsewhere(&all[0])?, far, "it led to where the pool was");
    assert!(all[1].read()?.get(far).is_err(), "kept from before");
    look_at(&all[1].read()?, all[1].read()?.get(elsewhere(&all[0])?)?)?;
    for name in ["bank", "twin", "first bank", "first twin", "second bank"] {
        let pool = store.pool(name)?;
        look(&pool.read()?)?;
        let report = pool.check()?;
        assert!(report.is_sound(), "{name}: {report:?}");
    }
    drop(all);
    store.close()?;
    assert_eq!(whole(dir.path(), "bank", Access::ReadOnly, Backend::Userfault)?, 0, "the original");
    Ok(())
}

#[test]
fn copies_of_one_pool_are_told_apart_while_they_are_touched() {
    seeds(3).for_each(|seed| bounded(seed, round));
}

/// Not a test of its own: a session in which puddles are mapped before they are rewritten.
#[test]
fn child() {
    if task().is_some() {
        round_with(1, Bug::PendingPuddleMapped).expect("nothing is amiss");
    }
}

/// An assertion finds it, or a load of a page that has no access any more.
#[test]
fn copies_whose_puddles_are_mapped_before_they_are_rewritten_are_found() {
    let dir = directory();
    let mut command = with_task("touches::copies::child", "mapped early", dir.path());
    let (status, said) = ended(&mut command);
    assert!(said.contains("running 1 test"), "{said}");
    assert!(!status.success(), "not found: {said}");
}
