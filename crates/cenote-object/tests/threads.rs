//! Psyncs of many threads: they share syncs, no psync is acknowledged without one, and the journal
//! is reused and grows under them.

use cenote_layout::id::Uuid;
use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_medium::{
    Durability, FileWord, LockGuard, LockHolder, LockKind, MapMode, Medium, MediumError,
    MediumInfo, MediumOptions, Persistence, RealMedium,
};
use cenote_object::{Mechanism, Objects, ObjectsOptions, Permission, Store, Trim};
use cenote_store::{FormatOptions, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

type Result<T> = core::result::Result<T, MediumError>;

/// A simulated medium whose journal may be slow to sync, and which notes the calls that read, write
/// and sync.
#[derive(Debug)]
struct Slow {
    inner: Arc<SimMedium>,
    slow: AtomicBool,
    syncs: AtomicU64,
    calls: Mutex<Vec<String>>,
}

impl Slow {
    fn new(window_base: u64) -> Arc<Self> {
        let inner =
            SimMedium::new(SimOptions { record: false, ..SimOptions::new(Durability::Process) });
        let calls = Mutex::default();
        let medium =
            Arc::new(Self { inner, slow: AtomicBool::new(false), syncs: AtomicU64::new(0), calls });
        let format = FormatOptions {
            window_base: Some(window_base),
            window_len: 256 << 20,
            ..Default::default()
        };
        cenote_store::format(medium.clone(), &format).expect("format");
        medium
    }

    fn note(&self, call: &str, name: &str) {
        let name = if name.starts_with("puddles/") { "primary" } else { name };
        self.calls.lock().expect("not poisoned").push(format!("{call} {name}"));
    }
}

// SAFETY: every call goes to the simulated medium.
unsafe impl Medium for Slow {
    fn describe(&self) -> MediumInfo {
        self.inner.describe()
    }
    fn persistence(&self, level: Durability) -> Persistence {
        self.inner.persistence(level)
    }
    fn read_only(&self) -> bool {
        self.inner.read_only()
    }
    fn boot_id(&self) -> Uuid {
        self.inner.boot_id()
    }
    fn now_s(&self) -> u64 {
        self.inner.now_s()
    }
    fn random_uuid(&self) -> Result<Uuid> {
        self.inner.random_uuid()
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.inner.exists(name)
    }
    fn len(&self, name: &str) -> Result<u64> {
        self.inner.len(name)
    }
    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.note("read", name);
        self.inner.read_at(name, offset, buf)
    }
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.inner.read(name)
    }
    unsafe fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        self.note("write", name);
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.write_at(name, offset, data) }
    }
    fn create(&self, name: &str, len_bytes: u64) -> Result<()> {
        self.inner.create(name, len_bytes)
    }
    unsafe fn truncate(&self, name: &str, len_bytes: u64) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.truncate(name, len_bytes) }
    }
    unsafe fn clear(&self, name: &str) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.clear(name) }
    }
    fn sync(&self, name: &str) -> Result<()> {
        self.note("sync", name);
        if name == "journal" && self.slow.load(Ordering::SeqCst) {
            self.syncs.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(60));
        }
        self.inner.sync(name)
    }
    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.inner.sync_dir(dir)
    }
    unsafe fn rename(&self, from: &str, to: &str) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.rename(from, to) }
    }
    unsafe fn remove(&self, name: &str) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.remove(name) }
    }
    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn make_dir(&self, name: &str) -> Result<()> {
        self.inner.make_dir(name)
    }
    fn lock(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>> {
        self.inner.lock(name, kind)
    }
    fn reserve_window(&self, base: u64, len: u64) -> Result<()> {
        self.inner.reserve_window(base, len)
    }
    unsafe fn release_window(&self, base: u64, len: u64) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.inner.release_window(base, len) }
    }
    unsafe fn map_written(
        &self,
        name: &str,
        addr: u64,
        len: u64,
        mode: MapMode,
        word: Option<FileWord>,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.inner.map_written(name, addr, len, mode, word) }
    }
    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.inner.unmap(addr, len) }
    }
}

#[test]
fn concurrent_psyncs_share_one_sync() {
    const THREADS: usize = 8;
    let medium = Slow::new(0x5200_0000_0000);
    let (store, _) = Store::open(medium.clone(), OpenOptions::default()).expect("open");
    let objects =
        Objects::open(&store, &ObjectsOptions { trim: Trim::Inline, ..Default::default() })
            .expect("objects");
    for i in 0..THREADS {
        objects.pcreate(&format!("o{i}"), 4096, None, 0o600).expect("create");
    }
    medium.slow.store(true, Ordering::SeqCst);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for i in 0..THREADS {
            let (objects, barrier, medium) = (&objects, &barrier, &medium);
            scope.spawn(move || {
                let mut o =
                    objects.attach(&format!("o{i}"), Permission::ReadWrite, None).expect("attach");
                o.as_mut_slice().expect("writable")[0] = 1;
                barrier.wait();
                o.psync().expect("psync");
                assert!(medium.syncs.load(Ordering::SeqCst) > 0, "acknowledged without any sync");
            });
        }
    });
    let syncs = medium.syncs.load(Ordering::SeqCst);
    println!("{THREADS} psyncs, {syncs} syncs");
    assert!(syncs >= 1 && syncs < THREADS as u64, "{THREADS} psyncs took {syncs} syncs");
    medium.slow.store(false, Ordering::SeqCst);
}

#[test]
fn threads_that_psync_their_own_objects_do_not_disturb_each_other() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 120;
    for trim in [Trim::Background, Trim::Inline] {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || {
            let medium =
                Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
            let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
            // So small that it is reused all the time, and grows when a thread psyncs many pages.
            let options = ObjectsOptions { half_len: 16 << 10, trim, ..ObjectsOptions::default() };
            let objects = Objects::open(&store, &options).expect("objects");
            (store, objects)
        };
        let medium =
            Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
        cenote_store::format(medium, &FormatOptions { window_len: 1 << 30, ..Default::default() })
            .expect("format");
        let (store, objects) = open();
        for i in 0..THREADS {
            objects.pcreate(&format!("o{i}"), 512 << 10, None, 0o600).expect("create");
        }
        std::thread::scope(|scope| {
            for i in 0..THREADS {
                let objects = &objects;
                scope.spawn(move || {
                    let mut o = objects
                        .attach(&format!("o{i}"), Permission::ReadWrite, None)
                        .expect("attach");
                    for round in 1..=ROUNDS {
                        let pages = if round % 40 == 0 { 10 + 10 * i } else { 1 + round % 3 };
                        for page in 0..pages {
                            let at = ((page * 7 + round) % 128 * 4096) as usize;
                            o.as_mut_slice().expect("writable")[at..at + 4096]
                                .fill((round + i) as u8);
                        }
                        o.psync().expect("psync");
                    }
                });
            }
        });
        let (bytes, psyncs, syncs) = objects.journal_figures().expect("a journal");
        println!("{trim:?}: {psyncs} psyncs, {syncs} syncs, a journal of {bytes} bytes");
        assert_eq!(psyncs, THREADS * ROUNDS);
        assert!(bytes > 2 * (60 * 4096), "it did not grow");
        // As after a crash of the process: what is there are the last psyncs.
        objects.abandon();
        store.clone().abandon();
        drop((objects, store));
        let (_store, objects) = open();
        for i in 0..THREADS {
            let mut expected = vec![0u8; 512 << 10];
            for round in 1..=ROUNDS {
                let pages = if round % 40 == 0 { 10 + 10 * i } else { 1 + round % 3 };
                for page in 0..pages {
                    let at = ((page * 7 + round) % 128 * 4096) as usize;
                    expected[at..at + 4096].fill((round + i) as u8);
                }
            }
            let o = objects.attach(&format!("o{i}"), Permission::Read, None).expect("attach");
            assert!(o.as_slice() == expected, "{trim:?}: o{i}");
        }
    }
}

/// The calls of a psync do not depend on the machine.
#[test]
fn a_psync_reads_what_was_written_writes_the_journal_once_and_syncs_once() {
    let medium = Slow::new(0x5300_0000_0000);
    let (store, _) = Store::open(medium.clone(), OpenOptions::default()).expect("open");
    let options = ObjectsOptions {
        trim: Trim::Inline,
        mechanism: Some(Mechanism::Mprotect),
        ..Default::default()
    };
    let objects = Objects::open(&store, &options).expect("objects");
    objects.pcreate("o", 1 << 20, None, 0o600).expect("create");
    let mut o = objects.attach("o", Permission::ReadWrite, None).expect("attach");
    let mut calls_of = |pages: &[usize]| {
        for page in pages {
            o.as_mut_slice().expect("writable")[page * 4096] += 1;
        }
        medium.calls.lock().expect("not poisoned").clear();
        o.psync().expect("psync");
        medium.calls.lock().expect("not poisoned").join(", ")
    };
    assert_eq!(calls_of(&[]), "");
    assert_eq!(calls_of(&[7]), "read primary, write journal, sync journal");
    // Neighbours are read together.
    assert_eq!(calls_of(&[7, 8]), "read primary, write journal, sync journal");
    assert_eq!(calls_of(&[3, 200]), "read primary, read primary, write journal, sync journal");
    // Five runs in all, which no psync waited for. The journal gets a header, so the fence reads
    // the superblock.
    medium.calls.lock().expect("not poisoned").clear();
    objects.checkpoint().expect("checkpoint");
    let calls = medium.calls.lock().expect("not poisoned").join(", ");
    let writes = "write primary, ".repeat(5);
    assert_eq!(
        calls,
        format!("{writes}sync primary, read superblock, write journal, sync journal")
    );
    // Of many pages that changed as a whole few are compared; one that did not ends that.
    let mut reads_of = |pages: core::ops::Range<usize>, odd: Option<usize>, value: u8| {
        let data = o.as_mut_slice().expect("writable");
        for page in pages {
            let len = if odd == Some(page) { 8 } else { 4096 };
            data[page * 2 * 4096..][..len].fill(value);
        }
        medium.calls.lock().expect("not poisoned").clear();
        let done = o.psync().expect("psync");
        let calls = medium.calls.lock().expect("not poisoned");
        (done.data_bytes, calls.iter().filter(|call| *call == "read primary").count())
    };
    assert_eq!(reads_of(0..16, None, 100), (16 << 12, 9));
    assert_eq!(reads_of(0..120, None, 101), (120 << 12, 14));
    assert_eq!(reads_of(0..120, Some(5), 102), ((119 << 12) + 64, 20));
}
