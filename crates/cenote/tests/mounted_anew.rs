//! A disk that loses what it was not told to keep, while the machine goes on: it is pulled, or its
//! file system shuts itself down, and is mounted again. It counts as a loss of power.
//!
//! On the simulated medium: images of a loss of power under the same boot, in many ways, of a store
//! with a pool in shadowed mode, psynced and written on, and of one whose pool is in direct mode.
//! On a real file system, if one can be mounted: the shutdown itself; and what is no loss of power.

use crate::at_rest::{count, options, push};
use crate::support::Mounted;
use cenote::{
    AtRest, CrashKind, Error, FormatOptions, OpenOptions, PoolMode, PoolOptions, Result, Store,
};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{self, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
use cenote_store::StoreError;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const PSYNCED: u64 = 4;
const COMMITTED: u64 = 9;

/// Images of a loss of power of the disk alone, seeded.
fn images() -> Vec<Image> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(0x15a0_0000_0000),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).unwrap();
    let store = Store::open_on(medium, &OpenOptions::default()).unwrap();
    let shadowed = store.create_pool("shadowed", &options(AtRest::None, None)).unwrap();
    let direct = PoolOptions { mode: PoolMode::Direct, ..PoolOptions::default() };
    let direct = store.create_pool("direct", &direct).unwrap();
    push(&direct, 0, PSYNCED);
    push(&shadowed, 0, PSYNCED);
    shadowed.psync().unwrap();
    push(&shadowed, PSYNCED, COMMITTED);
    let state = sim.state_now();
    let mut images = vec![state.image_oldest(), state.image_latest()];
    let mut seed = 0x5eed_u64;
    for _ in 0..20 {
        images.push(state.image(&mut |_, alternatives| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % alternatives
        }));
    }
    images.into_iter().map(|image| image.with_kind(sim::CrashKind::Power).mounted_again()).collect()
}

/// What an open finds: the crash, the nodes of the pool in shadowed mode, and whether the one in
/// direct mode is refused.
fn found(image: &Image) -> Result<(Option<CrashKind>, u64, bool)> {
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(image);
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let nodes = count(&store.pool("shadowed")?);
    let refused =
        matches!(store.pool("direct"), Err(Error::Store(StoreError::PoolNotCovered { .. })));
    Ok((store.report().crash, nodes, refused))
}

#[test]
fn a_disk_that_comes_back_within_a_boot_has_what_was_psynced() {
    for image in images() {
        let found = found(&image).expect("a store");
        assert_eq!(found, (Some(CrashKind::Power), PSYNCED, true));
    }
}

#[test]
fn planted_a_mounting_that_is_not_compared_shows_what_memory_happened_to_hold() {
    let wrong = |images: &[Image]| {
        let wrong = images.iter().filter(|image| {
            let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| found(image)));
            !matches!(looked, Ok(Ok((Some(CrashKind::Power), PSYNCED, true))))
        });
        wrong.count()
    };
    let images = images();
    assert_eq!(wrong(&images), 0);
    plant(Bug::InstanceIgnored);
    let wrong = wrong(&images);
    plant(Bug::None);
    assert_eq!(wrong, images.len());
}

/// A store whose session ended without closing it.
fn left_open(dir: &Path) -> Result<()> {
    let store = Store::open(dir)?;
    let shadowed = store.create_pool("shadowed", &options(AtRest::None, None))?;
    push(&shadowed, 0, PSYNCED);
    shadowed.psync()?;
    push(&shadowed, PSYNCED, COMMITTED);
    drop(shadowed);
    store.clone().abandon();
    Ok(())
}

fn crash_and_nodes(dir: &Path) -> Result<(Option<CrashKind>, u64)> {
    let store = Store::open(dir)?;
    let nodes = count(&store.pool("shadowed")?);
    let crash = store.report().crash;
    store.close()?;
    Ok((crash, nodes))
}

#[test]
fn a_file_system_that_is_shut_down_and_mounted_again_counts_as_a_loss_of_power() -> Result<()> {
    let mut mounted = match Mounted::sharing(400 << 20) {
        Ok(mounted) => mounted,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    let dir = mounted.path().join("store");
    let mounting = |dir: &Path| {
        RealMedium::open(dir, &MediumOptions::default()).map(|medium| medium.mounting())
    };
    left_open(&dir)?;
    if mounting(&dir)? == 0 {
        println!("skipped: the system does not say which mounting a file system is");
        return Ok(());
    }
    mounted.shut_down_and_mount_again();
    assert_eq!(crash_and_nodes(&dir)?, (Some(CrashKind::Power), PSYNCED));
    Ok(())
}

#[test]
fn another_mount_of_a_file_system_that_lives_is_no_loss_of_power() -> Result<()> {
    let mounted = match Mounted::sharing(400 << 20) {
        Ok(mounted) => mounted,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    let bound = tempfile::tempdir().expect("a directory");
    let run = |program: &str, arguments: &[&Path]| {
        let done = Command::new(program).args(arguments).status().expect("run");
        assert!(done.success(), "{program} {arguments:?}");
    };
    left_open(&mounted.path().join("store"))?;
    // What a container sees.
    run("mount", &[Path::new("--bind"), mounted.path(), bound.path()]);
    let found = crash_and_nodes(&bound.path().join("store"));
    run("umount", &[Path::new("-l"), bound.path()]);
    assert_eq!(found?, (Some(CrashKind::Process), COMMITTED));
    Ok(())
}
