//! Locks in shared memory, and real processes that are killed while they have them.
//!
//! The other processes are this program again, told by the environment what to do.

use cenote_heap::locks::{LockTaken, OwnerLiveness, Processes, RobustMutex, RobustRwLock};
use cenote_sys::futex::wake_all;
use cenote_sys::memory::{Access, Sharing, map_file, release, reserve_anywhere};
use cenote_testkit::child::again;
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const CHILDREN: usize = 3;

/// What all processes see.
#[repr(C)]
struct Page {
    /// All zero is how they begin.
    lock: RobustRwLock,
    mutex: RobustMutex,
    /// Changed under the lock, one after the other: a process that was killed between leaves them
    /// different.
    one: AtomicU64,
    other: AtomicU64,
    /// The process that writes, as long as it does.
    writer: AtomicU64,
    /// Under the mutex.
    counted: AtomicU64,
    /// What each child has done.
    done: [AtomicU64; CHILDREN],
    /// Failures that a child saw.
    wrong: AtomicU64,
}

struct Mapped(usize);

impl Mapped {
    fn new(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        // Anywhere: nothing in it is an address.
        let at = reserve_anywhere(LEN, LEN).unwrap();
        // SAFETY: just reserved.
        unsafe { map_file(file.as_fd(), at, LEN, Access::ReadWrite, Sharing::Shared).unwrap() };
        Self(at)
    }

    fn page(&self) -> &Page {
        const { assert!(size_of::<Page>() <= LEN) };
        // SAFETY: mapped as long as `self` lives; all of it is atomics.
        unsafe { &*std::ptr::with_exposed_provenance(self.0) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: reserved in `new`, and not used any more.
        unsafe { release(self.0, LEN).unwrap() }
    }
}

fn held<T>(taken: Result<T, Infallible>) -> T {
    let Ok(held) = taken;
    held
}

/// Writes once, and repairs what a dead writer left.
fn write(page: &Page, owners: &Processes, me: u64) {
    let (_guard, taken) = held(page.lock.write(owners));
    let before = page.writer.swap(me, Ordering::Relaxed);
    let (one, other) = (page.one.load(Ordering::Relaxed), page.other.load(Ordering::Relaxed));
    // Only a thread that was told may find a difference; or a reader was told, which leaves
    // `writer` as it was.
    if taken == LockTaken::Clean && before == 0 && one != other {
        page.wrong.fetch_add(1, Ordering::Relaxed);
    }
    page.other.store(one, Ordering::Relaxed);
    page.one.store(one + 1, Ordering::Relaxed);
    std::hint::spin_loop();
    page.other.store(one + 1, Ordering::Relaxed);
    if page.writer.swap(0, Ordering::Relaxed) != me {
        page.wrong.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads once.
fn read(page: &Page, owners: &Processes) {
    let (_guard, taken) = held(page.lock.read(owners));
    let first = page.one.load(Ordering::Relaxed);
    (0..20).for_each(|_| std::hint::spin_loop());
    if page.one.load(Ordering::Relaxed) != first {
        page.wrong.fetch_add(1, Ordering::Relaxed);
    }
    // A reader that is told cannot repair. It shows that by leaving `writer` as the dead
    // one left it.
    let same = page.other.load(Ordering::Relaxed) == first;
    if taken == LockTaken::Clean && !same && page.writer.load(Ordering::Relaxed) == 0 {
        page.wrong.fetch_add(1, Ordering::Relaxed);
    }
}

/// Not a test by itself: the other processes.
#[test]
fn a_child_locks() {
    let Some(path) = std::env::var_os("LOCKS_PATH") else { return };
    let me: usize = std::env::var("LOCKS_ME").unwrap().parse().unwrap();
    let (mapped, owners) = (Mapped::new(Path::new(&path)), Processes::new().unwrap());
    let page = mapped.page();
    loop {
        let (_guard, _) = held(page.mutex.lock(&owners));
        page.counted.fetch_add(1, Ordering::Relaxed);
        drop(_guard);
        if page.done[me].fetch_add(1, Ordering::Relaxed) % 3 == 0 {
            write(page, &owners, owners.me());
        } else {
            read(page, &owners);
        }
    }
}

fn start(path: &Path, me: usize) -> Child {
    let mut command = again("locks::a_child_locks");
    command.env("LOCKS_PATH", path).env("LOCKS_ME", me.to_string());
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn locks_of_killed_processes_are_taken_over_and_no_two_are_in_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    File::create_new(&path).unwrap().set_len(LEN as u64).unwrap();
    let (mapped, owners) = (Mapped::new(&path), Processes::new().unwrap());
    let page = mapped.page();
    let mut children: Vec<Child> = (0..CHILDREN).map(|me| start(&path, me)).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for kill in 0..60 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let victim = (seed % CHILDREN as u64) as usize;
        let before = page.done[victim].load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_secs(60);
        while page.done[victim].load(Ordering::Relaxed) < before + 20 {
            assert!(Instant::now() < end, "child {victim} waits for ever, kill {kill}");
            write(page, &owners, owners.me());
            read(page, &owners);
        }
        std::thread::sleep(Duration::from_nanos(seed >> 44));
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        children[victim] = start(&path, victim);
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // All owners are dead, and no thread waits for them.
    write(page, &owners, owners.me());
    drop(held(page.mutex.lock(&owners)));
    assert_eq!(page.wrong.load(Ordering::Relaxed), 0);
    assert_eq!(page.one.load(Ordering::Relaxed), page.other.load(Ordering::Relaxed));
    assert!(held(page.lock.try_write(&owners)).is_some_and(|(_, taken)| taken == LockTaken::Clean));
}

#[test]
fn an_owner_that_cannot_be_judged_stays_the_owner() {
    struct Unknown;
    impl OwnerLiveness for Unknown {
        type Error = &'static str;

        fn me(&self) -> u64 {
            7
        }

        fn has_ended(&self, _: u64) -> Result<bool, &'static str> {
            Err("not known")
        }
    }
    struct Known(u64);
    impl OwnerLiveness for Known {
        type Error = Infallible;

        fn me(&self) -> u64 {
            8
        }

        fn has_ended(&self, owner: u64) -> Result<bool, Infallible> {
            Ok(owner == self.0)
        }
    }
    let mutex = RobustMutex::new();
    std::mem::forget(mutex.lock(&Unknown));
    assert_eq!(mutex.lock(&Unknown).err(), Some("not known"));
    assert_eq!(mutex.try_lock(&Unknown).err(), Some("not known"));
    assert!(held(mutex.try_lock(&Known(1))).is_none());
    let (guard, taken) = held(mutex.lock(&Known(7)));
    assert_eq!(taken, LockTaken::Recovered);
    drop(guard);
    assert_eq!(held(mutex.lock(&Known(7))).1, LockTaken::Clean);
    // A writer that finds a dead writer, and a reader of which nothing is known: the next thread
    // is told in its place.
    let lock = RobustRwLock::default();
    std::mem::forget(held(lock.read(&Known(0))));
    struct Half;
    impl OwnerLiveness for Half {
        type Error = &'static str;

        fn me(&self) -> u64 {
            7
        }

        fn has_ended(&self, owner: u64) -> Result<bool, &'static str> {
            if owner == 9 { Ok(true) } else { Err("not known") }
        }
    }
    // SAFETY: the lock's first word is the writer's; it is this thread's alone.
    unsafe { AtomicU64::from_ptr((&raw const lock).cast_mut().cast()) }.store(9, Ordering::SeqCst);
    assert_eq!(lock.write(&Half).err(), Some("not known"));
    assert_eq!(held(lock.write(&Known(8))).1, LockTaken::Recovered);
    assert!(held(lock.try_write(&Known(0))).is_some_and(|(_, taken)| taken == LockTaken::Clean));
}

/// May wait until a moment. All owners live.
struct Patient(Instant);

impl OwnerLiveness for Patient {
    type Error = &'static str;

    fn me(&self) -> u64 {
        7
    }

    fn has_ended(&self, _: u64) -> Result<bool, &'static str> {
        self.in_time().map(|()| false)
    }

    fn in_time(&self) -> Result<(), &'static str> {
        if Instant::now() < self.0 { Ok(()) } else { Err("late") }
    }
}

#[test]
fn a_limit_is_kept_while_others_hand_the_lock_to_each_other() {
    let lock = RobustRwLock::default();
    // SAFETY: the lock's first word is the writer's, and an atomic.
    let word = unsafe { AtomicU64::from_ptr((&raw const lock).cast_mut().cast()) };
    let limit = Duration::from_millis(20);
    word.store(8, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (stop, told) = std::sync::mpsc::channel::<()>();
        // Another owner every now and then, and never none, for longer than the test may wait.
        scope.spawn(move || {
            let owners = (0..20_000u64).map(|step| 8 + step % 2);
            for owner in owners {
                word.store(owner, Ordering::SeqCst);
                // As an owner does that gives it back. The next one has it before a waiter looks.
                wake_all(word);
                if told.recv_timeout(Duration::from_micros(300)).is_ok() {
                    break;
                }
            }
            word.store(0, Ordering::SeqCst);
            wake_all(word);
        });
        for _ in 0..3 {
            for until in [Instant::now(), Instant::now() + limit] {
                assert_eq!(lock.read(&Patient(until)).err(), Some("late"));
                assert_eq!(lock.write(&Patient(until)).err(), Some("late"));
                assert!(Instant::now() >= until);
            }
        }
        stop.send(()).expect("it goes on");
    });
    assert!(held(lock.try_write(&Processes::new().expect("processes"))).is_some());
}
