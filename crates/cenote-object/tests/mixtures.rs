//! Mixtures of two states of one store, file by file: what is served is one of the two states.
//!
//! A store has a pool of three puddles, a pool of one, and an object. All of them change between
//! two closes. The generator takes each file from one state or the other, in every combination,
//! with the checksums and authentication codes that it was written with, and opens the result.

use crate::common::{base_image, bytes_of, host, key, options, protect, raw};
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{HostedClient, Mode, Objects, Permission, Store};
use cenote_store::{
    Access, Anchor, AtRest, Begun, Credentials, OpenOptions, PoolHandle, PoolMode, PoolOptions,
};
use std::sync::Arc;

/// Modes in which a page that was put back is found.
pub(crate) const CHECKED: [Mode; 3] =
    [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated];
const HALF: u64 = 1 << 16;
const PUDDLE: u64 = PoolOptions::PUDDLE_SIZE_MIN;
/// Pools, and puddles of each.
const POOLS: [(&str, usize); 2] = [("p", 3), ("q", 1)];

fn opened(sim: &Arc<SimMedium>, access: Access) -> Result<(Store, Objects), String> {
    let medium: Arc<dyn Medium> = sim.clone();
    let opening = OpenOptions { access, ..OpenOptions::default() };
    let (store, _) = Store::open(medium, opening).map_err(|error| error.to_string())?;
    match Objects::open(&store, &options(HALF)) {
        Ok(objects) => Ok((store, objects)),
        Err(error) => {
            store.abandon();
            Err(error.to_string())
        }
    }
}

/// A closed store with the pools, none of which has been written.
fn made(mode: Mode) -> Image {
    made_with(mode, OpenOptions::default().journal_half_len)
}

/// The same with halves of this length in the journal of pools, and at most in that of objects.
pub(crate) fn made_with(mode: Mode, half_len: u64) -> Image {
    protect(mode);
    // Recorded, so that crashes of what comes later can be made.
    let sim = SimMedium::from_image(&base_image(half_len.min(HALF)));
    let opening = OpenOptions { journal_half_len: half_len, ..OpenOptions::default() };
    let (store, _) = Store::open(sim.clone(), opening).expect("open");
    let objects = Objects::open(&store, &options(HALF)).expect("objects");
    for (name, puddles) in POOLS {
        let key = mode.has_key().then(|| Arc::new(crate::common::key_of(1)));
        let (mode, at_rest) = (PoolMode::Shadowed, AtRest::of(mode));
        let asked =
            PoolOptions { mode, puddle_size: PUDDLE, at_rest, key, ..PoolOptions::default() };
        raw(&store).create_pool(name, &asked).expect("create");
        let pool = raw(&store).open_pool_with(name, Access::ReadWrite, self::key()).expect("open");
        for _ in 1..puddles {
            pool.take_puddle(PUDDLE).expect("a puddle");
        }
    }
    drop(objects);
    store.close().expect("close");
    sim.image_now(CrashKind::Process)
}

/// Writes a value to a page of every puddle, and psyncs.
pub(crate) fn fill(pool: &PoolHandle, value: u8) {
    for puddle in pool.puddles() {
        pool.store().ensure_mapped(puddle).expect("mapped");
        let at = core::ptr::with_exposed_provenance_mut::<u8>(puddle.body_addr() as usize);
        // SAFETY: the body of a puddle that this test alone has, mapped, and writable by tracking.
        unsafe { at.write_bytes(value, 4096) };
    }
    match pool.store().begin_psync(&[pool], &|_| None).expect("begun") {
        Begun::Mine(mut psync) => {
            // SAFETY: this thread alone has the pool.
            unsafe { psync.copy() }.expect("copied");
            psync.commit().expect("committed");
        }
        Begun::Done(_) | Begun::Refused => panic!("no other psync runs"),
    }
}

/// One session that writes a value everywhere, one psync for each pool and object.
fn session(image: &Image, value: u8, closes: bool) -> Image {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = opened(&sim, Access::ReadWrite).expect("open");
    let mut object = objects.attach("a", Permission::ReadWrite, key()).expect("attached");
    object.as_mut_slice().expect("writable").fill(value);
    object.psync().expect("psync");
    for (name, _) in POOLS {
        fill(&raw(&store).open_pool_with(name, Access::ReadWrite, key()).expect("open"), value);
    }
    if !closes {
        objects.abandon();
        store.abandon();
        return sim.image_now(CrashKind::Process);
    }
    object.detach().expect("detached");
    drop(objects);
    store.close().expect("close");
    sim.image_now(CrashKind::Process)
}

/// What a store serves of all its things: a value for each; or why it serves none.
pub(crate) fn seen(image: &Image, access: Access) -> Result<Vec<u8>, String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = opened(&sim, access)?;
    let read = || -> Result<Vec<u8>, String> {
        let object =
            objects.attach("a", Permission::Read, key()).map_err(|error| error.to_string())?;
        let mut all = vec![one_of(&bytes_of(&object)?)?];
        for (name, puddles) in POOLS {
            let pool = raw(&store).open_pool_with(name, Access::ReadOnly, key());
            let pool = pool.map_err(|error| error.to_string())?;
            if pool.puddles().len() != puddles {
                return Err("a puddle is gone".into());
            }
            for puddle in pool.puddles() {
                let mut bytes = vec![0; 4096];
                // SAFETY: the pool is open for reading, and no thread writes it.
                unsafe { pool.read_at(puddle.body_addr(), &mut bytes) }
                    .map_err(|error| error.to_string())?;
                all.push(one_of(&bytes)?);
            }
        }
        Ok(all)
    };
    let all = read();
    objects.abandon();
    store.abandon();
    all
}

fn one_of(bytes: &[u8]) -> Result<u8, String> {
    let same = bytes.iter().all(|byte| *byte == bytes[0]);
    if same { Ok(bytes[0]) } else { panic!("half of each state is served") }
}

/// What a program remembers of the pools and the object.
struct Anchors([Vec<Anchor>; 2], Anchor);

/// Two states of one store.
struct Two {
    mode: Mode,
    old: Image,
    new: Image,
    /// What each serves.
    values: [Vec<u8>; 2],
}

impl Two {
    /// Both closed, or as a crash of their sessions left them.
    fn made(mode: Mode, closes: bool) -> Self {
        let old = session(&made(mode), 1, closes);
        let new = session(&old, 2, closes);
        let values = [&old, &new].map(|image| seen(image, Access::ReadOnly).expect("whole"));
        assert!(values.iter().zip([1, 2]).all(|(all, value)| all.iter().all(|v| *v == value)));
        Self { mode, old, new, values }
    }

    /// Files that differ.
    fn differing(&self) -> Vec<String> {
        let mut names = self.old.names();
        names.extend(self.new.names());
        names.sort_unstable();
        names.dedup();
        names.retain(|name| self.old.file(name) != self.new.file(name));
        names
    }

    /// The files of a pool's puddles.
    fn puddles_of(&self, pool: &str) -> Vec<String> {
        let sim = SimMedium::from_image_unrecorded(&self.new);
        let (store, objects) = opened(&sim, Access::ReadOnly).expect("open");
        let pool = raw(&store).open_pool_with(pool, Access::ReadOnly, key()).expect("open");
        let ids: Vec<_> = pool.puddles().iter().map(|puddle| puddle.uuid()).collect();
        let of_pool = |name: &String| {
            name.strip_prefix("puddles/").and_then(Uuid::parse).is_some_and(|id| ids.contains(&id))
        };
        let files: Vec<_> = self.new.names().into_iter().filter(of_pool).collect();
        assert_eq!(files.len(), ids.len());
        drop(pool);
        objects.abandon();
        store.abandon();
        files
    }

    /// The new state with some files of the old one.
    fn mixed(&self, back: &[&String]) -> Image {
        let mut image = self.new.clone();
        for name in back {
            match self.old.file(name) {
                Some(bytes) => image.set_file(name, &bytes),
                None => drop(image.remove(name)),
            }
        }
        image
    }

    /// Opens every mixture of these files but all new and all old. Returns how many were refused,
    /// or the first that serves another state than the two.
    fn judge(&self, files: &[String]) -> Result<u64, String> {
        let mut refused = 0;
        for mask in 1..(1u32 << files.len()) - 1 {
            let back: Vec<&String> = files
                .iter()
                .enumerate()
                .filter(|(i, _)| mask >> i & 1 == 1)
                .map(|(_, name)| name)
                .collect();
            let image = self.mixed(&back);
            for access in [Access::ReadOnly, Access::ReadWrite] {
                match seen(&image, access) {
                    Err(_) => refused += 1,
                    Ok(all) if self.values.contains(&all) => {}
                    Ok(all) => {
                        return Err(format!(
                            "{}, {access:?}, old {back:?}: {all:?} is served",
                            self.mode
                        ));
                    }
                }
            }
        }
        protect(self.mode);
        Ok(refused)
    }
}

#[test]
fn every_mixture_of_a_pools_puddles_is_refused() {
    for mode in CHECKED {
        let two = Two::made(mode, true);
        let files = two.puddles_of("p");
        let refused = two.judge(&files).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(refused, 2 * (8 - 2), "{mode}");
    }
    protect(Mode::None);
}

fn caught(bug: Bug) {
    let mode = Mode::Authenticated;
    plant(bug);
    let found = Two::made(mode, true);
    let found = found.judge(&found.puddles_of("p"));
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

#[test]
fn a_pools_list_of_puddles_that_is_not_compared_is_found() {
    caught(Bug::MembersIgnored);
}

#[test]
fn a_psync_that_leaves_the_list_of_puddles_as_it_was_is_found() {
    let base = made(Mode::Authenticated);
    plant(Bug::MembersNotUpdated);
    let after = session(&base, 1, true);
    plant(Bug::None);
    let refused = seen(&after, Access::ReadOnly).expect_err("the bug was not found");
    assert!(refused.contains("puddle"), "{refused}");
    println!("{refused}");
    protect(Mode::None);
}

#[test]
fn every_mixture_of_a_stores_files_is_refused_or_is_one_of_its_states() {
    for mode in CHECKED {
        let two = Two::made(mode, true);
        let files = two.differing();
        assert!((8..=12).contains(&files.len()), "{files:?}");
        let refused = two.judge(&files).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {refused} of {} mixtures of {files:?} are refused", 2 << files.len());
        // One file of the catalog alone is put right by the other: hardly anything else passes.
        assert!(refused > (2 << files.len()) * 3 / 4, "{mode}: {refused}");
    }
    protect(Mode::None);
}

#[test]
fn every_mixture_of_a_store_that_crashed_is_refused_or_is_one_of_its_states() {
    for mode in CHECKED {
        let two = Two::made(mode, false);
        let files = two.differing();
        let refused = two.judge(&files).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {refused} of {} mixtures of {files:?} are refused", 2 << files.len());
        assert!(refused > 2 << (files.len() - 2), "{mode}: {refused}");
    }
    protect(Mode::None);
}

/// A mixture that is served while a bug is planted.
fn is_found(bug: Bug) {
    plant(bug);
    let two = Two::made(Mode::Authenticated, true);
    let found = two.judge(&two.differing());
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

#[test]
fn a_list_of_protected_things_that_is_not_compared_is_found() {
    is_found(Bug::RootsIgnored);
}

/// Journals and catalog tell a journal that goes back together with the superblock. Of the
/// superblock alone this tells.
#[test]
fn a_superblock_of_an_earlier_session_that_is_believed_is_found() {
    let two = Two::made(Mode::Authenticated, false);
    let image = two.mixed(&[&"superblock".to_owned()]);
    let refused = seen(&image, Access::ReadOnly).expect_err("it is older than the journals");
    assert!(refused.contains("superblock was put back"), "{refused}");
    plant(Bug::SessionIgnored);
    let found = seen(&image, Access::ReadOnly);
    plant(Bug::None);
    protect(Mode::None);
    assert!(!found.is_err_and(|why| why.contains("superblock was put back")));
}

#[test]
fn a_whole_old_store_passes_and_anchors_find_it() {
    for mode in CHECKED {
        let two = Two::made(mode, true);
        let anchors = |image: &Image, old: Option<&Anchors>| {
            let sim = SimMedium::from_image_unrecorded(image);
            let (store, objects) = opened(&sim, Access::ReadOnly).expect("open");
            let pools = POOLS.map(|(name, _)| {
                let pool = raw(&store).open_pool_with(name, Access::ReadOnly, key()).expect("open");
                if let Some(old) = old {
                    let checked = pool.check_anchors(&old.0[usize::from(name == "q")]);
                    assert!(checked.is_err(), "{mode}, pool {name}");
                }
                pool.anchors()
            });
            let object = objects.attach("a", Permission::Read, key()).expect("attached");
            if let Some(old) = old {
                assert!(object.check_anchor(&old.1).is_err(), "{mode}, the object");
            }
            let anchor = object.anchor().expect("it is protected");
            drop(object);
            objects.abandon();
            store.abandon();
            Anchors(pools, anchor)
        };
        let new = anchors(&two.new, None);
        anchors(&two.old, Some(&new));
    }
    protect(Mode::None);
}

/// What a daemon that has this store says when a client attaches the object.
fn asked_of_daemon(image: &Image) -> String {
    let sim = SimMedium::from_image_unrecorded(image);
    let medium: Arc<dyn Medium> = sim.clone();
    // SAFETY: this process attaches none of the objects.
    let hosting = Some(unsafe { cenote_store::Hosting::new() });
    let opening = OpenOptions { hosting, spare_bytes_max: 0, ..OpenOptions::default() };
    let (store, _) = Store::open(medium, opening).expect("open");
    let objects = Objects::open(&store, &options(HALF)).expect("objects");
    let (uid, gid) = (cenote_sys::process::uid(), cenote_sys::process::gid());
    let (client, pid, start_ticks) = (Uuid::from_random_bytes([5; 16]), 0x7fff_ffff, 3);
    raw(&store).admit(HostedClientRecord { client, pid, start_ticks, uid, gid }).expect("admit");
    let credentials = Credentials { uid, gid, groups: Vec::new() };
    let hosted_client = HostedClient { client, pid, start_ticks, credentials: &credentials };
    // A simulated medium has no descriptors to hand out: that is the last step.
    let refused = host(&objects)
        .attach_for(&hosted_client, "a", Permission::Read)
        .expect_err("no descriptor");
    objects.abandon();
    store.abandon();
    refused.to_string()
}

#[test]
fn a_daemon_hands_out_no_object_whose_file_was_put_back() {
    for mode in CHECKED {
        let two = Two::made(mode, true);
        let sim = SimMedium::from_image_unrecorded(&two.new);
        let (store, objects) = opened(&sim, Access::ReadOnly).expect("open");
        let file = store.object("a").expect("it is there").file();
        objects.abandon();
        store.abandon();
        drop(objects);
        let whole = asked_of_daemon(&two.new);
        assert!(!whole.contains("put back"), "{mode}: {whole}");
        let mixed = asked_of_daemon(&two.mixed(&[&file]));
        assert!(mixed.contains("put back"), "{mode}: {mixed}");
    }
    protect(Mode::None);
}
