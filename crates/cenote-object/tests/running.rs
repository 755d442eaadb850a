//! Attacks on objects that run: threads attach, store, psync, detach, copy, restore, remove and
//! rekey the same few objects at once; some of it in a process that is killed.
//!
//! A writer stores one *stamp* into every page of an object, and psyncs that or does not. What
//! holds at any time: all pages that can be seen of an object say one stamp, the one that was
//! psynced last; so does every snapshot, and every object that was restored from one.
//!
//! `CENOTE_RUNNING_ROUNDS` sets the rounds of each test, `CENOTE_RUNNING_SEED` the first seed.

use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{
    Attached, Blocks, Keyring, MasterKey, Mechanism, Mode, ObjectError, ObjectOptions, Objects,
    ObjectsOptions, Permission, Store, Trim, psync_all,
};
use cenote_store::{FormatOptions, OpenOptions, StoreError};
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::directories::directory;
use cenote_testkit::environment::number;
use cenote_testkit::random::next as random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

const PAGE: usize = 4096;
/// Objects: name, pages, mode. Of the last page of some only a part is there.
pub(crate) const OBJECTS: [(&str, u64, Mode); 4] = [
    ("plain", 40, Mode::None),
    ("small", 1, Mode::None),
    ("sealed", 24, Mode::Authenticated),
    ("checked", 12, Mode::Integrity),
];
const THREADS: u64 = 5;

fn seeds(rounds: u64) -> impl Iterator<Item = u64> {
    let first = number("CENOTE_RUNNING_SEED", 1);
    first..first + number("CENOTE_RUNNING_ROUNDS", rounds)
}

pub(crate) fn key(byte: u8) -> Keyring {
    let mut bytes = std::array::from_fn(|at| byte.wrapping_add(37u8.wrapping_mul(at as u8)));
    Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key"))
}

/// What the threads of a round share.
struct Round {
    objects: Objects,
    /// For snapshots.
    outside: PathBuf,
    keys: [Keyring; 2],
    /// What was psynced last, of objects whose contents are known; held by the thread that
    /// compares.
    psynced: Mutex<BTreeMap<&'static str, u64>>,
    stamps: AtomicU64,
    files: AtomicU64,
    /// How often an act came to its end.
    done: AtomicU64,
}

pub(crate) fn open(dir: &Path, options: &ObjectsOptions) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let lock_timeout = Duration::from_secs(20);
    let (store, _) = Store::open(medium, OpenOptions { lock_timeout, ..OpenOptions::default() })
        .expect("a store");
    let objects = Objects::open(&store, options).expect("objects");
    (store, objects)
}

pub(crate) fn small_journal() -> ObjectsOptions {
    ObjectsOptions { half_len: 64 << 10, ..ObjectsOptions::default() }
}

pub(crate) fn prepare(dir: &Path) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    cenote_store::format(
        medium,
        &FormatOptions { window_len: 1 << 30, ..FormatOptions::default() },
    )
    .expect("format");
    let (_store, objects) = open(dir, &small_journal());
    for (name, ..) in OBJECTS {
        create(&objects, name, &key(1)).expect("created");
    }
}

pub(crate) fn create(objects: &Objects, name: &str, key: &Keyring) -> Result<(), ObjectError> {
    let (_, pages, mode) = OBJECTS.into_iter().find(|(known, ..)| *known == name).expect("known");
    let options = ObjectOptions { at_rest: mode, ..ObjectOptions::default() };
    let key = mode.has_key().then_some(key);
    objects.pcreate_with(name, pages * PAGE as u64 - 100 * (pages % 3), key, &options).map(drop)
}

/// The stamp of all pages.
pub(crate) fn stamp_of(bytes: &[u8], what: &str) -> u64 {
    let stamps: Vec<u64> = bytes
        .chunks(PAGE)
        .map(|page| u64::from_le_bytes(page[..8].try_into().expect("8")))
        .collect();
    let ends: Vec<u8> = bytes.chunks(PAGE).map(|page| page[page.len() - 1]).collect();
    assert!(
        stamps.iter().all(|stamp| *stamp == stamps[0]),
        "{what}: pages of several psyncs: {stamps:?}"
    );
    assert!(
        ends.iter().all(|end| *end == stamps[0] as u8),
        "{what}: ends of several psyncs: {ends:?}"
    );
    stamps[0]
}

/// Stores a stamp into all pages, by threads that have a part each.
pub(crate) fn store_stamp(
    object: &mut Attached,
    stamp: u64,
    threads: usize,
) -> Result<(), ObjectError> {
    let bytes = object.as_mut_slice()?;
    let pages = bytes.len().div_ceil(PAGE);
    let part = pages.div_ceil(threads) * PAGE;
    std::thread::scope(|scope| {
        for bytes in bytes.chunks_mut(part) {
            scope.spawn(move || {
                for page in bytes.chunks_mut(PAGE) {
                    page[..8].copy_from_slice(&stamp.to_le_bytes());
                    *page.last_mut().expect("not empty") = stamp as u8;
                }
            });
        }
    });
    Ok(())
}

/// Refusals that another thread is the reason of.
pub(crate) fn is_refusal(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::Busy { .. }
            | ObjectError::AtRest { .. }
            | ObjectError::Mechanism { .. }
            | ObjectError::StillThere { .. }
            | ObjectError::Store(
                StoreError::ObjectUnknown { .. } | StoreError::ObjectExists { .. }
            )
    )
}

impl Round {
    fn new(dir: &Path, options: &ObjectsOptions) -> (Store, Self) {
        let (store, objects) = open(dir, options);
        let psynced = OBJECTS.iter().map(|(name, ..)| (*name, 0)).collect();
        let round = Self {
            objects,
            outside: dir.with_extension("outside"),
            keys: [key(1), key(2)],
            psynced: Mutex::new(psynced),
            stamps: AtomicU64::new(1),
            files: AtomicU64::new(0),
            done: AtomicU64::new(0),
        };
        std::fs::create_dir_all(&round.outside).expect("a directory");
        (store, round)
    }

    fn attach(
        &self,
        name: &str,
        permission: Permission,
        seed: &mut u64,
    ) -> Result<Attached, ObjectError> {
        let mode = OBJECTS
            .iter()
            .find(|(known, ..)| *known == name)
            .map_or(Mode::None, |(.., mode)| *mode);
        // Some keys are wrong: the other one, or the one of before a rekey.
        let key = mode.has_key().then(|| &self.keys[random(seed) as usize % 2]);
        let mechanism =
            Mechanism::ALL.get(random(seed) as usize % (Mechanism::ALL.len() + 2)).copied();
        self.objects.attach_with(name, permission, key, mechanism)
    }

    fn last(&self, name: &str) -> u64 {
        self.psynced.lock().expect("no panic").get(name).copied().unwrap_or_default()
    }

    /// A writer: compares, stores, and psyncs or not. `said`: told of a psync.
    fn write(
        &self,
        name: &'static str,
        seed: &mut u64,
        said: &dyn Fn(&str, u64),
    ) -> Result<(), ObjectError> {
        let mut object = self.attach(name, Permission::ReadWrite, seed)?;
        for _ in 0..1 + random(seed) % 3 {
            // No other thread changes it as long as this is attached.
            assert_eq!(
                stamp_of(object.as_slice(), name),
                self.last(name),
                "{name}, attached for writing"
            );
            let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
            store_stamp(&mut object, stamp, 1 + random(seed) as usize % 3)?;
            if random(seed).is_multiple_of(4) {
                // Not psynced: gone with this.
                break;
            }
            object.psync()?;
            self.psynced.lock().expect("no panic").insert(name, stamp);
            said(name, stamp);
            assert_eq!(stamp_of(object.as_slice(), name), stamp);
        }
        if random(seed).is_multiple_of(2) { object.detach() } else { Ok(()) }
    }

    fn read(&self, name: &'static str, seed: &mut u64) -> Result<(), ObjectError> {
        let object = self.attach(name, Permission::Read, seed)?;
        let stamp = stamp_of(object.as_slice(), name);
        assert_eq!(stamp, self.last(name), "{name}, attached for reading");
        let other = self.attach(name, Permission::Read, seed);
        assert!(self.objects.pdestroy(name, None).is_err() || stamp == u64::MAX, "it is attached");
        assert!(self.attach(name, Permission::ReadWrite, seed).is_err());
        let (path, blocks) = (self.fresh(), Blocks::Copied);
        object.snapshot(&path, blocks)?;
        drop(other);
        assert_eq!(stamp_of(object.as_slice(), name), stamp);
        object.detach()?;
        let _ = std::fs::remove_file(path);
        Ok(())
    }

    fn fresh(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.outside.join(format!("{} of {}", number, std::process::id()))
    }

    /// A snapshot, and an object of another name from it.
    fn copy(&self, name: &'static str, seed: &mut u64) -> Result<(), ObjectError> {
        let path = self.fresh();
        let before = self.last(name);
        self.objects.snapshot(name, &path, Blocks::Copied)?;
        let copy = format!("copy {}", path.file_name().expect("a name").display());
        let restored = self.objects.restore(&path, Some(&copy));
        std::fs::remove_file(&path).expect("removed");
        // A protected one keeps its identity, and its first is there.
        restored?;
        let object = self.objects.attach(&copy, Permission::ReadWrite, None)?;
        let stamp = stamp_of(object.as_slice(), &copy);
        assert!(stamp >= before, "{stamp} was copied, {before} was psynced before");
        // Detached or not, removed.
        if random(seed).is_multiple_of(2) {
            assert!(matches!(self.objects.pdestroy(&copy, None), Err(ObjectError::Busy { .. })));
        }
        object.detach()?;
        self.objects.pdestroy(&copy, None)
    }

    /// Removes an object and has it again from a snapshot of before, under its name and identity.
    fn again(&self, name: &'static str) -> Result<(), ObjectError> {
        let path = self.fresh();
        // Held throughout: what is known of it is not true meanwhile.
        let mut psynced = self.psynced.lock().expect("no panic");
        let done = self.objects.snapshot(name, &path, Blocks::Copied).and_then(|_| {
            self.objects.pdestroy(name, None)?;
            // Something else may have its addresses.
            let between = format!("between {}", path.file_name().expect("a name").display());
            self.objects.pcreate(&between, 64 << 10, None, 0o600)?;
            self.objects.restore(&path, None)?;
            self.objects.pdestroy(&between, None)
        });
        let _ = std::fs::remove_file(&path);
        if let Err(error) = &done {
            assert!(is_refusal(error), "{name}: {error}");
            assert!(self.objects.info(name).is_ok(), "{name} is there, or there again: {error}");
        }
        psynced.entry(name).or_default();
        done
    }

    fn act(&self, seed: &mut u64, said: &dyn Fn(&str, u64)) -> Result<(), ObjectError> {
        let (name, ..) = OBJECTS[random(seed) as usize % OBJECTS.len()];
        match random(seed) % 12 {
            0..=3 => self.write(name, seed, said),
            4 | 5 => self.read(name, seed),
            6 => self.copy(name, seed),
            7 => {
                let from = random(seed) as usize % 2;
                self.objects.rekey("sealed", &self.keys[from], &self.keys[1 - from]).map(drop)
            }
            8 => self.objects.checkpoint(),
            9 => {
                self.objects.list()?;
                self.objects.set_mode(name, 0o600)
            }
            10 => self.again(name),
            _ => self.together(seed, said),
        }
    }

    /// Two objects at once.
    fn together(&self, seed: &mut u64, said: &dyn Fn(&str, u64)) -> Result<(), ObjectError> {
        let mut first = self.attach("plain", Permission::ReadWrite, seed)?;
        let mut second = self.attach("checked", Permission::ReadWrite, seed)?;
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        store_stamp(&mut first, stamp, 2)?;
        store_stamp(&mut second, stamp, 1)?;
        psync_all(&mut [&mut first, &mut second])?;
        let mut psynced = self.psynced.lock().expect("no panic");
        psynced.extend([("plain", stamp), ("checked", stamp)]);
        drop(psynced);
        said("plain", stamp);
        Ok(())
    }

    /// Threads, each with so many acts.
    fn run(&self, seed: u64, acts: u64, said: &(dyn Fn(&str, u64) + Sync)) {
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut seed = seed.wrapping_mul(1000) + thread;
                    barrier.wait();
                    for _ in 0..acts {
                        match self.act(&mut seed, said) {
                            Ok(()) => drop(self.done.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert!(is_refusal(&error), "{error:?}"),
                        }
                    }
                });
            }
        });
    }
}

/// Waits so long for a round: a hundred times what it takes.
fn bounded(seed: u64, round: fn(u64)) {
    let (done, ended) = mpsc::channel();
    let running = std::thread::spawn(move || {
        round(seed);
        let _ = done.send(());
    });
    let repeat = format!("repeat it with CENOTE_RUNNING_SEED={seed} CENOTE_RUNNING_ROUNDS=1");
    if ended.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("still waiting: {repeat}");
    }
    if let Err(panic) = running.join() {
        println!("{repeat}");
        std::panic::resume_unwind(panic);
    }
}

fn threads(seed: u64) {
    let outer = directory();
    let dir = outer.path().join("store");
    std::fs::create_dir(&dir).expect("a directory");
    prepare(&dir);
    let trim = [Trim::Background, Trim::Inline][seed as usize % 2];
    let (store, round) = Round::new(&dir, &ObjectsOptions { trim, ..small_journal() });
    round.run(seed, 25, &|_, _| {});
    let Round { objects, psynced, done, .. } = round;
    let done = done.into_inner();
    println!("seed {seed}, {trim:?}: {done} acts came to their end");
    assert!(done > 20, "hardly anything was done: {done}");
    objects.abandon();
    store.clone().abandon();
    drop((objects, store));
    // As after a crash of the process.
    let psynced = psynced.into_inner().expect("no panic");
    check(&dir, |name, stamp| assert_eq!(stamp, psynced[name], "{name}"));
}

/// Looks at all objects, under whichever key they are.
fn check(dir: &Path, mut is: impl FnMut(&str, u64)) {
    let (_store, objects) = open(dir, &small_journal());
    for (name, _, mode) in OBJECTS {
        let keys = [key(1), key(2)];
        let attached = match mode.has_key() {
            false => objects.attach(name, Permission::Read, None),
            true => keys
                .iter()
                .map(|key| objects.attach(name, Permission::Read, Some(key)))
                .reduce(Result::or)
                .expect("two"),
        };
        is(name, stamp_of(attached.expect("attached").as_slice(), name));
    }
}

#[test]
fn threads_that_do_everything_to_objects_see_what_was_psynced_last() {
    seeds(6).for_each(|seed| bounded(seed, threads));
}

const DIR: &str = "CENOTE_RUNNING_DIR";

/// Not a test by itself: threads that do everything to objects until they are killed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let (_store, round) = Round::new(Path::new(&dir), &small_journal());
    check_known(&round);
    let said = |name: &str, stamp: u64| {
        let number = OBJECTS.iter().position(|(known, ..)| *known == name).expect("known") as u64;
        assert!(acknowledge(stamp << 8 | number), "heard");
    };
    round.run(number("CENOTE_RUNNING_CHILD", 1), u64::MAX, &said);
}

/// The store has the state that was psynced last; new stamps are larger.
fn check_known(round: &Round) {
    let mut psynced = round.psynced.lock().expect("no panic");
    for (name, _, mode) in OBJECTS {
        let keys: Vec<_> =
            if mode.has_key() { round.keys.iter().map(Some).collect() } else { vec![None] };
        let attached = keys
            .into_iter()
            .map(|key| round.objects.attach(name, Permission::Read, key))
            .reduce(Result::or)
            .expect("one");
        let stamp = stamp_of(attached.expect("attached").as_slice(), name);
        psynced.insert(name, stamp);
        round.stamps.fetch_max(stamp + 1, Ordering::Relaxed);
    }
}

fn kills(seed: u64) {
    let outer = directory();
    let dir = outer.path().join("store");
    std::fs::create_dir(&dir).expect("a directory");
    prepare(&dir);
    let mut choice = seed;
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for turn in 0..4 {
        let mut command = again("running::child");
        command.env(DIR, &dir).env("CENOTE_RUNNING_CHILD", (seed * 10 + turn).to_string());
        let child = Acknowledging::start(&mut command);
        // From the first psync on.
        let after = Duration::from_micros(random(&mut choice) % 60_000);
        let object = |word: u64| OBJECTS.get((word & 0xff) as usize);
        for word in child.kill(true, after, |word| object(word).is_some()) {
            let (name, ..) = object(word).expect("an object");
            let stamp = last.entry((*name).into()).or_default();
            *stamp = (*stamp).max(word >> 8);
        }
        lacks(&dir);
        check(&dir, |name, stamp| {
            let acknowledged = last.get(name).copied().unwrap_or_default();
            assert!(
                stamp >= acknowledged,
                "{name}: {stamp} is there, {acknowledged} was acknowledged"
            );
        });
    }
    println!("seed {seed}: {last:?}");
}

/// An act of the child removes an object and has it again: one that was killed in between is made
/// anew, as a program would.
fn lacks(dir: &Path) {
    let (_store, objects) = open(dir, &small_journal());
    for (name, ..) in OBJECTS {
        if let Err(ObjectError::Store(StoreError::ObjectUnknown { .. })) = objects.info(name) {
            let snapshots = std::fs::read_dir(dir.with_extension("outside")).expect("a directory");
            let restored = snapshots
                .map(|entry| entry.expect("an entry").path())
                .find(|path| objects.restore(path, None).is_ok_and(|_| objects.info(name).is_ok()));
            assert!(restored.is_some(), "{name} is gone, and its snapshot");
        }
    }
    let _ = std::fs::remove_dir_all(dir.with_extension("outside"));
}

#[test]
fn kill_9_of_threads_that_do_everything_to_objects_leaves_whole_psyncs() {
    seeds(2).for_each(|seed| bounded(seed, kills));
}

/// What a store has of an object, and what its file is, may differ: no load finds that out.
#[test]
fn a_file_of_another_length_than_its_object_is_refused() {
    let outer = directory();
    prepare(outer.path());
    let (_store, objects) = open(outer.path(), &small_journal());
    assert!(objects.pcreate("nothing", 0, None, 0o600).is_err());
    for (name, _, mode) in OBJECTS {
        let key = key(1);
        let key = mode.has_key().then_some(&key);
        let info = objects.info(name).expect("there").object;
        let path = outer.path().join(info.file());
        let file = std::fs::File::options().write(true).open(&path).expect("a file");
        let whole = std::fs::read(&path).expect("read");
        let len = whole.len() as u64;
        for other in [0, 1, info.data_offset(), len / 2, len - 4096, len - 1, len + 1, len + 4096] {
            file.set_len(other).expect("a length");
            for permission in [Permission::Read, Permission::ReadWrite] {
                assert!(
                    objects.attach(name, permission, key).is_err(),
                    "{name}: {other} of {len} bytes"
                );
            }
            let snapshot = outer.path().join("snapshot");
            assert!(
                objects.snapshot(name, &snapshot, Blocks::Copied).is_err() && !snapshot.exists()
            );
            std::fs::write(&path, &whole).expect("written");
        }
        let attached = objects.attach(name, Permission::Read, key).expect("as it was");
        assert_eq!(stamp_of(attached.as_slice(), name), 0);
    }
}
