//! Stores that move to another window although files of theirs are damaged: the rest is used there,
//! and what was damaged is whole when its files are back, as they were before the move.
//!
//! On real directories: each way to damage each file of a puddle. On the simulated medium: each
//! crash of the move, and of what follows when the file is back.

use crate::archives::{list, small, store_with_window, values, window};
use crate::support::directory;
use crate::windows::Taken;
use cenote::{
    Access, Durability, Error, FormatOptions, OpenOptions, Pool, PoolMode, PoolOptions, Result,
    Store,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Image, SimMedium, SimOptions};
use cenote_store::StoreError;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Several puddles.
const LEN: u64 = 5000;
/// One.
const SHORT: u64 = 40;
/// If this is set, every image is looked at; without it so many of each session.
const ALL: &str = "CENOTE_WINDOWS_ALL";
const SOME: usize = 24;

#[derive(Clone, Copy, Debug)]
enum Harm {
    Away,
    Cut,
    Header,
}

fn modes() -> [(&'static str, PoolOptions); 2] {
    let shadowed = PoolOptions { mode: PoolMode::Shadowed, ..small() };
    [("direct", PoolOptions { mode: PoolMode::Direct, ..small() }), ("shadowed", shadowed)]
}

fn finish(pool: &Pool) -> Result<()> {
    pool.finish_relocation(&mut |_| ControlFlow::Continue(())).map(drop)
}

/// The pool holds what it was made with, and can be written.
fn whole(store: &Store, name: &str, len: u64) -> Result<()> {
    let pool = store.pool(name)?;
    assert_eq!(values(&pool)?, (0..len).collect::<Vec<_>>(), "{name}");
    pool.write(|tx| tx.alloc(7u64).and_then(|value| tx.free(value)))?;
    let report = pool.check()?;
    assert_eq!((report.leaked_blocks, report.damage.len()), (0, 0), "{name}: {report:?}");
    Ok(())
}

fn is_refused(store: &Store, name: &str) -> bool {
    matches!(store.pool(name), Err(Error::Store(StoreError::PoolDamaged { .. })))
}

/// A closed store whose puddles have moved once and were rewritten, and where it lies.
fn moved_once(dir: &Path) -> Result<u64> {
    let base = window();
    let store = store_with_window(dir, base);
    for (name, options) in modes() {
        drop(list(&store, name, &options, LEN)?);
    }
    store.close()?;
    let _taken = Taken::new(base);
    let store = Store::open(dir)?;
    for (name, _) in modes() {
        finish(&store.pool(name)?)?;
    }
    let here = store.window().0;
    store.close()?;
    Ok(here)
}

/// The files of the first and the last puddle of a pool.
fn files(dir: &Path, pool: &str) -> Result<Vec<PathBuf>> {
    let store = Store::open_with(dir, &OpenOptions::read_only())?;
    let id = store
        .pools()
        .into_iter()
        .find(|info| info.record.name == pool)
        .expect("it is there")
        .record
        .id;
    let mut puddles: Vec<_> =
        store.puddle_records().into_iter().filter(|puddle| puddle.pool == id).collect();
    puddles.sort_by_key(|puddle| puddle.index);
    assert!(puddles.len() > 1);
    let names = [&puddles[0], &puddles[puddles.len() - 1]].map(|puddle| -> String {
        puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect()
    });
    let all = ["puddles", "primary"]
        .into_iter()
        .flat_map(|at| names.clone().map(|name| dir.join(at).join(name)));
    Ok(all.filter(|path| path.exists()).collect())
}

fn harm(path: &Path, how: Harm) {
    let mut bytes = std::fs::read(path).expect("it is there");
    match how {
        Harm::Away => return std::fs::remove_file(path).expect("removed"),
        Harm::Cut => bytes.truncate(5000),
        Harm::Header => bytes[80] ^= 1,
    }
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn a_store_moves_beside_a_damaged_file_and_has_all_when_it_is_back() -> Result<()> {
    let keep = directory();
    let dir = keep.path().join("store");
    std::fs::create_dir(&dir).expect("made");
    let mut home = moved_once(&dir)?;
    let names = modes().map(|(name, _)| name);
    let mut taken = Vec::new();
    let mut round = 0;
    for (bad, good) in [(names[0], names[1]), (names[1], names[0])] {
        for file in files(&dir, bad)? {
            let how = [Harm::Away, Harm::Cut, Harm::Header][round % 3];
            println!("{bad}: {} {how:?}", file.display());
            let bytes = std::fs::read(&file).expect("it is there");
            harm(&file, how);
            // Once, or twice.
            for times in 0..1 + round % 2 {
                taken.push(Taken::new(home));
                let reader = Store::open_with(&dir, &OpenOptions::read_only())?;
                assert_eq!(values(&reader.pool_with(good, Access::ReadOnly)?)?.len() as u64, LEN);
                drop(reader);
                let store = Store::open(&dir)?;
                assert_eq!(store.report().window_moved_from, Some(home));
                assert!(is_refused(&store, bad), "{times}");
                whole(&store, good, LEN)?;
                home = store.window().0;
                if round % 4 == 3 { store.abandon() } else { store.close()? }
            }
            let store = Store::open(&dir)?;
            assert_eq!(store.report().window_moved_from, None);
            assert!(is_refused(&store, bad));
            assert!(!store.damaged_files()?.is_empty());
            store.close()?;
            std::fs::write(&file, bytes).expect("written");
            let store = Store::open(&dir)?;
            whole(&store, bad, LEN)?;
            whole(&store, good, LEN)?;
            finish(&store.pool(bad)?)?;
            store.close()?;
            round += 1;
        }
    }
    assert_eq!(round, 6);
    Ok(())
}

/// A closed store of two pools on the simulated medium, moved once, with one file damaged; its name
/// and what it held; and where the store lies.
fn damaged(bad: &str, how: Harm) -> Result<(Image, String, Vec<u8>, u64)> {
    let base = window();
    // Of another seed than that of each test beside this one: windows are chosen by it.
    let sim = SimMedium::new(SimOptions { seed: base, ..SimOptions::new(Durability::Power) });
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_base: Some(base), window_len: 1 << 28, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium.clone(), &OpenOptions::default())?;
    for (name, options) in modes() {
        drop(list(&store, name, &options, SHORT)?);
    }
    store.close()?;
    let taken = Taken::new(base);
    let store = Store::open_on(medium, &OpenOptions::default())?;
    for (name, _) in modes() {
        finish(&store.pool(name)?)?;
    }
    let home = store.window().0;
    let id = store
        .pools()
        .into_iter()
        .find(|info| info.record.name == bad)
        .expect("it is there")
        .record
        .id;
    let puddle =
        store.puddle_records().into_iter().find(|puddle| puddle.pool == id).expect("it has one");
    store.close()?;
    drop(taken);
    let hex: String = puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
    let name = format!("puddles/{hex}");
    let mut image = sim.state_now().image_latest();
    let whole = image.file(&name).expect("it is there");
    match how {
        Harm::Away => assert!(image.remove(&name)),
        Harm::Cut => assert!(image.truncate(&name, 5000)),
        Harm::Header => assert!(image.flip_bit(&name, 70, 3)),
    }
    Ok((image, name, whole, home))
}

fn open(image: &Image) -> Result<Store> {
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(image);
    Store::open_on(medium, &OpenOptions::default())
}

/// Images of crashes after each event of a session, or some of them.
pub(crate) fn crashes(sim: &SimMedium) -> Vec<Image> {
    let mut seed = 0x5eed_u64;
    let mut images = Vec::new();
    for events in 0..=sim.trace_len() {
        let state = sim.state_after(events);
        images.extend([state.image_oldest(), state.image_latest(), state.image_process()]);
        images.push(state.image(&mut |_, alternatives| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % alternatives
        }));
    }
    let mut seen = std::collections::BTreeSet::new();
    images.retain(|image| seen.insert(image.hash()));
    if std::env::var_os(ALL).is_none() {
        let step = images.len() / SOME + 1;
        images = images.into_iter().step_by(step).collect();
    }
    images
}

/// What the pools of an image hold, the damaged one included, once its file is back.
fn all_back(image: &Image, (name, bytes): (&str, &[u8])) -> Result<()> {
    let mut image = image.clone();
    image.set_file(name, bytes);
    let store = open(&image)?;
    modes().iter().try_for_each(|(name, _)| whole(&store, name, SHORT))?;
    store.close()
}

/// Crashes of a move beside damage, and of the session after the file is back: how many there are,
/// and how many lose something.
fn losses(bad: &str, how: Harm, bug: Bug) -> Result<(usize, usize)> {
    let (start, name, bytes, home) = damaged(bad, how)?;
    let good =
        modes().map(|(name, _)| name).into_iter().find(|name| *name != bad).expect("another");
    let (mut all, mut lost) = (0, 0);
    let sim = SimMedium::from_image(&start);
    let taken = Taken::new(home);
    plant(bug);
    let store = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default());
    plant(Bug::None);
    let store = store?;
    assert!(is_refused(&store, bad));
    whole(&store, good, SHORT)?;
    store.close()?;
    let images = crashes(&sim);
    let mut last = sim.state_now().image_latest();
    drop(taken);
    for image in &images {
        all += 1;
        // Where the window is free.
        let store = open(image)?;
        assert!(is_refused(&store, bad));
        whole(&store, good, SHORT)?;
        let here = store.window().0;
        store.abandon();
        lost += usize::from(all_back(image, (&name, &bytes)).is_err());
        if lost > 0 {
            return Ok((all, lost));
        }
        // Where it is taken once more.
        let _taken = Taken::new(here);
        let again = open(image)?;
        whole(&again, good, SHORT)?;
        again.close()?;
    }
    last.set_file(&name, &bytes);
    let sim = SimMedium::from_image(&last);
    let store = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default())?;
    if whole(&store, bad, SHORT).is_err() {
        return Ok((all, lost + 1));
    }
    finish(&store.pool(bad)?)?;
    store.close()?;
    for image in crashes(&sim) {
        all += 1;
        let store = open(&image)?;
        modes().iter().try_for_each(|(name, _)| whole(&store, name, SHORT))?;
        store.abandon();
    }
    Ok((all, lost))
}

#[test]
fn no_crash_of_a_move_beside_damage_loses_anything() -> Result<()> {
    for (bad, how) in [("direct", Harm::Away), ("direct", Harm::Header), ("shadowed", Harm::Cut)] {
        let (all, lost) = losses(bad, how, Bug::None)?;
        println!("{bad} {how:?}: {all} images");
        assert_eq!(lost, 0, "{bad} {how:?}");
    }
    Ok(())
}

#[test]
fn planted_a_generation_that_is_guessed_refuses_the_file_when_it_is_back() -> Result<()> {
    assert!(losses("direct", Harm::Away, Bug::GenerationGuessed)?.1 > 0);
    Ok(())
}
