//! What a forked child can do with the handles, views and transactions that its parent had. Safe
//! code forks by libraries: those that make daemons, say. The child is refused, or dies at memory
//! that is not there; the parent's store does not change, and the child waits for no thread that
//! only its parent has.
//!
//! A program of its own: nothing else runs when it forks.

#[allow(unused_imports)] // this program uses a part of it
mod support;

use cenote::{
    Access, DataProtection, Error, HeapKind, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store,
};
use cenote_store::StoreError;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Persist)]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Exit(i32),
    Signal(i32),
}

/// Forks here. In the child: an alarm, so that one that waits for ever ends.
fn fork() -> Option<i32> {
    let _ = std::io::stdout().flush();
    // SAFETY: no other thread of this program has a lock that the child takes: each test here is
    // the only one that runs.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a system call.
            unsafe { libc::alarm(10) };
            None
        }
        child => Some(child),
    }
}

fn wait(child: i32) -> Ended {
    let mut status = 0;
    // SAFETY: a system call with a pointer to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    match libc::WIFEXITED(status) {
        true => Ended::Exit(libc::WEXITSTATUS(status)),
        false => Ended::Signal(libc::WTERMSIG(status)),
    }
}

/// Leaves the child without destructors.
fn leave(code: i32) -> ! {
    // SAFETY: a system call.
    unsafe { libc::_exit(code) }
}

/// What a child does: it ends with the code that this returns.
fn in_child(body: impl FnOnce() -> i32) -> Ended {
    match fork() {
        Some(child) => wait(child),
        None => leave(std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101)),
    }
}

fn is_forked<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Store(StoreError::Forked)))
}

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
    pool: Pool,
    node: Ptr<Node>,
}

fn fixture() -> Result<Fixture> {
    let dir = support::directory();
    let store = Store::open(dir.path().join("store"))?;
    let pool = store.pool("p")?;
    let node = pool.write(|tx| -> Result<_> {
        let node = tx.alloc(Node { value: 1, next: None })?;
        tx.set_root(node)?;
        Ok(node)
    })?;
    Ok(Fixture { dir, store, pool, node })
}

/// The same, opened again with a thread that reclaims beside it.
fn background(fixture: Fixture) -> Result<Fixture> {
    let Fixture { dir, store, pool, node } = fixture;
    drop(pool);
    store.close()?;
    let store = Store::open(dir.path().join("store"))?;
    store.reclaim_in_background(cenote::ReclaimPolicy::Always)?;
    let pool = store.pool("p")?;
    // Until it has nothing to do: what it does changes files.
    store.quiesce()?;
    Ok(Fixture { dir, store, pool, node })
}

/// The parent goes on, and so does the next opener.
fn unharmed(fixture: Fixture) -> Result<()> {
    let Fixture { dir, store, pool, node } = fixture;
    pool.write(|tx| tx.get_mut(node).map(|node| node.value += 1))?;
    let value = pool.read()?.get(node)?.value;
    assert_eq!(pool.check()?.leaked_blocks, 0);
    drop(pool);
    store.close()?;
    let store = Store::open(dir.path().join("store"))?;
    assert!(store.report().clean, "{:?}", store.report());
    assert_eq!(store.pool("p")?.read()?.get(node)?.value, value);
    store.close()
}

/// A copy of a store's directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        match entry.file_type().expect("kind").is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied")),
        }
    }
}

fn a_transaction_that_is_forked_is_no_transaction_of_the_child() -> Result<()> {
    // What the child does with it: nothing, read, change, allocate, free; then it commits, gives up
    // or panics.
    for act in 0..5 {
        for end in 0..3 {
            let fixture = fixture()?;
            let Fixture { pool, node, .. } = &fixture;
            let mut child = None;
            let mut here = false;
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.write(|tx| -> Result<()> {
                    tx.get_mut(*node)?.value = 7;
                    child = fork();
                    if child.is_some() {
                        return Ok(());
                    }
                    here = true;
                    match act {
                        1 => drop(tx.get(*node).map(|node| node.value)),
                        2 => drop(tx.get_mut(*node).map(|node| node.value = 99)),
                        3 => drop(tx.alloc(Node { value: 3, next: None })),
                        4 => drop(tx.free(*node)),
                        _ => {}
                    }
                    match end {
                        0 => Ok(()),
                        1 => Err(Error::Aborted("on purpose".into())),
                        _ => panic!("on purpose"),
                    }
                })
            }));
            if here {
                leave(if matches!(result, Ok(Ok(()))) { 1 } else { 0 });
            }
            let ended = wait(child.expect("a child"));
            println!("act {act}, end {end}: {ended:?}");
            assert!(
                matches!(ended, Ended::Exit(0) | Ended::Signal(libc::SIGSEGV)),
                "{act}, {end}: {ended:?}"
            );
            assert!(matches!(result, Ok(Ok(()))));
            assert_eq!(pool.read()?.get(*node)?.value, 7);
            unharmed(fixture)?;
        }
    }
    Ok(())
}

fn a_view_that_is_forked_shows_nothing() -> Result<()> {
    let fixture = fixture()?;
    let view = fixture.pool.read()?;
    let kept = view.get(fixture.node)?;
    let ended = in_child(|| match view.get(fixture.node) {
        Ok(node) if node.value == 1 => 1,
        Ok(_) => 2,
        Err(_) => 0,
    });
    println!("get: {ended:?}");
    assert!(matches!(ended, Ended::Exit(0) | Ended::Signal(libc::SIGSEGV)), "{ended:?}");
    let ended = in_child(|| if kept.value == 1 { 1 } else { 2 });
    assert_eq!(ended, Ended::Signal(libc::SIGSEGV), "a reference from before");
    assert_eq!(in_child(|| if is_forked(fixture.pool.read()) { 0 } else { 1 }), Ended::Exit(0));
    drop(view);
    unharmed(fixture)
}

/// The child opens a store whose window lies where its parent's is: nothing that it has from before
/// leads into that.
fn a_reference_from_before_never_leads_into_a_store_of_the_child() -> Result<()> {
    let fixture = fixture()?;
    let other = fixture.dir.path().join("other");
    // The same window, and other values where the parent's are.
    let Fixture { dir, store, pool, node } = fixture;
    drop(pool);
    store.close()?;
    copy(&dir.path().join("store"), &other);
    let store = Store::open(dir.path().join("store"))?;
    let pool = store.pool("p")?;
    let fixture = Fixture { dir, store, pool, node };
    let view = fixture.pool.read()?;
    let kept = view.get(node)?;
    let ended = in_child(|| {
        let Ok(store) = Store::open(&other) else { return 0 };
        let Ok(pool) = store.pool("p") else { return 0 };
        let changed = pool.write(|tx| tx.get_mut(node).map(|node| node.value = 99));
        if changed.is_err() {
            return 0;
        }
        match kept.value {
            99 => 1,
            _ => 2,
        }
    });
    println!("a store of the child: {ended:?}");
    assert!(matches!(ended, Ended::Exit(0) | Ended::Signal(libc::SIGSEGV)), "{ended:?}");
    drop(view);
    unharmed(fixture)
}

/// Memory that the child takes never lies where a reference from before leads.
fn a_reference_from_before_never_leads_into_memory_of_the_child() -> Result<()> {
    let fixture = fixture()?;
    let view = fixture.pool.read()?;
    let kept = view.get(fixture.node)?;
    let at = std::ptr::from_ref(kept).addr();
    let ended = in_child(|| {
        let taken: Vec<Vec<u8>> = (0..64).map(|_| vec![1u8; 8 << 20]).collect();
        i32::from(
            taken.iter().any(|one| one.as_ptr_range().contains(&std::ptr::without_provenance(at))),
        )
    });
    assert_eq!(ended, Ended::Exit(0));
    drop(view);
    unharmed(fixture)
}

/// Whatever the child drops, and however it ends, it waits for no thread, and changes no file.
fn handles_are_dropped_in_a_child_in_any_order() -> Result<()> {
    for order in 0..6 {
        let fixture = background(fixture()?)?;
        let before = support::hashes(fixture.dir.path());
        let child = fork();
        if child.is_none() {
            let Fixture { store, pool, .. } = fixture;
            match order {
                0 => {
                    drop(pool);
                    drop(store);
                }
                1 => {
                    drop(store);
                    drop(pool);
                }
                2 => {
                    drop(pool);
                    let closed = store.close();
                    if closed.is_ok() {
                        leave(1);
                    }
                }
                3 => drop(std::thread::spawn(move || drop((pool, store))).join()),
                // With what runs at the end of a process.
                4 => std::process::exit(0),
                _ => {
                    let _view = pool.read();
                    std::process::exit(0);
                }
            }
            leave(0);
        }
        assert_eq!(wait(child.expect("a child")), Ended::Exit(0), "{order}");
        assert_eq!(support::hashes(fixture.dir.path()), before, "{order}");
        unharmed(fixture)?;
    }
    Ok(())
}

fn a_child_may_have_a_store_of_its_own_and_not_its_parents() -> Result<()> {
    let fixture = fixture()?;
    let (own, parents) = (fixture.dir.path().join("own"), fixture.dir.path().join("store"));
    let ended = in_child(|| {
        if Store::open(&parents).is_ok() {
            return 1;
        }
        let Ok(store) = Store::open(&own) else { return 2 };
        let Ok(pool) = store.pool("p") else { return 3 };
        if pool.write(|tx| tx.alloc(Node { value: 5, next: None })).is_err() {
            return 4;
        }
        // Its own guard is armed now, and the parent's handles are refused as before.
        if !is_forked(fixture.pool.read()) || !is_forked(fixture.pool.write(|_| Ok(()))) {
            return 5;
        }
        if fixture.store.pool_with("p", Access::ReadOnly).is_ok_and(|pool| !is_forked(pool.read()))
        {
            return 6;
        }
        drop(pool);
        i32::from(store.close().is_err()) * 7
    });
    assert_eq!(ended, Ended::Exit(0));
    unharmed(fixture)
}

/// Another thread has the list of open pools when the process forks: it reports the progress of a
/// check. The child waits for none of it, whatever it calls or drops.
fn a_child_waits_for_no_lock_of_a_thread_that_it_does_not_have() -> Result<()> {
    let fixture = fixture()?;
    let Fixture { dir, store, pool, .. } = &fixture;
    let lists = store.pool("lists")?;
    // Something to report, and leaks: then all pools are looked at.
    lists.write(|tx| -> Result<()> {
        let mut next = None;
        for value in 0..3000 {
            next = Some(tx.alloc(Node { value, next })?);
        }
        tx.set_root(next.expect("a node"))?;
        (0..600).try_for_each(|_| tx.alloc([0u64; 8]).map(drop))
    })?;
    let (begun, is_in) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut reports = 0;
            let mut progress = |_: &cenote::TraceProgress| {
                reports += 1;
                // Some of them with the list, and some without.
                if reports % 4 == 1 && begun.send(()).is_ok() {
                    let _ = goes_on.recv();
                }
                std::ops::ControlFlow::Continue(())
            };
            let mut options = cenote::TraceOptions::default();
            options.workers = std::num::NonZero::new(1);
            options.interval = std::time::Duration::ZERO;
            options.progress = Some(&mut progress);
            assert_eq!(lists.check_with(options).expect("checked").leaked_blocks, 600);
        });
        let mut ended = Vec::new();
        while is_in.recv().is_ok() {
            let acts: [(&str, &dyn Fn() -> bool); 6] = [
                ("opens", &|| is_forked(store.pool("p"))),
                ("creates", &|| is_forked(store.create_pool("new", &Default::default()))),
                ("moves", &|| is_forked(store.randomize_pool("p"))),
                ("exports", &|| is_forked(store.export(&["p"], Vec::new(), Default::default()))),
                ("checks", &|| is_forked(pool.check())),
                ("imports", &|| is_forked(store.import(&[0u8][..], Default::default()))),
            ];
            for (what, act) in acts {
                ended.push((what, in_child(|| i32::from(!act()))));
            }
            let drops = || {
                let (store, pool) = (store.clone(), pool.clone());
                drop(pool);
                drop(store);
                0
            };
            ended.push(("drops", in_child(drops)));
            ended.push(("exits", in_child(|| std::process::exit(0))));
            let own = dir.path().join(format!("own {}", ended.len()));
            ended.push(("has its own", in_child(|| i32::from(own_store(&own).is_err()))));
            go_on.send(()).expect("it waits");
        }
        assert!(ended.len() >= 18, "{ended:?}");
        ended.retain(|(_, ended)| *ended != Ended::Exit(0));
        assert!(ended.is_empty(), "{ended:?}");
    });
    unharmed(fixture)
}

/// A thread of the parent has the locks of the protection nearly all the time.
fn a_settling_child_waits_for_no_lock() -> Result<()> {
    let dir = support::directory();
    let store = Store::open(dir.path())?;
    let protect = DataProtection::Deferred { wait_ms: 40 };
    let options = PoolOptions { heap: HeapKind::Logged, protect, ..PoolOptions::default() };
    let pool = store.create_pool("p", &options)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.settle_protection();
            }
        });
        let settles = || {
            pool.settle_protection();
            0
        };
        let ended: Vec<Ended> = (0..40).map(|_| in_child(settles)).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(|ended| *ended == Ended::Exit(0)), "{ended:?}");
    });
    drop(pool);
    store.close()
}

fn own_store(path: &Path) -> Result<()> {
    let store = Store::open(path)?;
    let pool = store.pool("p")?;
    pool.write(|tx| tx.alloc(Node { value: 5, next: None }))?;
    drop(pool);
    store.close()
}

fn main() {
    // Nothing of these programs goes to the user's directories.
    let state = tempfile::tempdir().expect("a directory");
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("XDG_STATE_HOME", state.path()) };
    type Test = (&'static str, fn() -> Result<()>);
    let tests: [Test; 8] = [
        ("locks", a_child_waits_for_no_lock_of_a_thread_that_it_does_not_have),
        ("transactions", a_transaction_that_is_forked_is_no_transaction_of_the_child),
        ("views", a_view_that_is_forked_shows_nothing),
        ("stores of the child", a_reference_from_before_never_leads_into_a_store_of_the_child),
        ("memory of the child", a_reference_from_before_never_leads_into_memory_of_the_child),
        ("drops", handles_are_dropped_in_a_child_in_any_order),
        ("protection", a_settling_child_waits_for_no_lock),
        ("own stores", a_child_may_have_a_store_of_its_own_and_not_its_parents),
    ];
    let mut failed = 0;
    for (name, test) in tests {
        let done = std::panic::catch_unwind(test);
        println!("{name}: {done:?}");
        failed += usize::from(!matches!(done, Ok(Ok(()))));
    }
    assert_eq!(failed, 0, "some failed");
}
