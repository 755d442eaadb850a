//! No thread stays asleep at the frontier when a rewriter panics, when a pool is removed before it
//! was touched, or when a handler interrupts a thread while it rewrites. And a rewriting that stops
//! in the middle, because the caller says so or because the disk is full, goes on later.

use crate::relocate::{fill, open_rewriting};
use crate::support::{Mounted, directory, within};
use cenote::{Access, Backend, ExportOptions, ImportOptions, PoolMode, RelocationOptions, Store};
use cenote_relocate::PointerRewriter;
use cenote_store::relocate::{RewriteJob, Rewriter, Rewritten};
use cenote_testkit::child::again;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Does what it is told before it rewrites.
struct Slow<F>(F);

impl<F> std::fmt::Debug for Slow<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slow")
    }
}

// SAFETY: `PointerRewriter` changes the image, and nothing else does.
unsafe impl<F: Fn(&RewriteJob) + Send + Sync> Rewriter for Slow<F> {
    fn rewrite(&self, image: &mut [u8], job: &RewriteJob) -> Result<Rewritten, String> {
        (self.0)(job);
        PointerRewriter.rewrite(image, job)
    }
}

fn rewriting(
    backend: Backend,
    before: impl Fn(&RewriteJob) + Send + Sync + 'static,
) -> RelocationOptions {
    RelocationOptions { rewriter: Some(Arc::new(Slow(before))), backend }
}

/// The last puddle of a pool: nothing but a touch makes it ready.
fn last_puddle(store: &Store, name: &str) -> (u64, u64) {
    let id = store.pools().iter().find(|pool| pool.record.name == name).expect("there").record.id;
    let own = store.puddle_records().into_iter().filter(|puddle| puddle.pool == id);
    let last = own.max_by_key(|puddle| puddle.index).expect("several");
    (last.addr, last.size)
}

/// Lets the kernel read a byte; `Err` is what it says.
fn read_by_the_kernel(at: u64) -> std::io::Result<()> {
    // SAFETY: an address in the store's window, which no thread writes; for a page that cannot be
    // read the system call returns an error.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 1) };
    std::fs::write(directory().path().join("byte"), bytes)
}

const NODES: u64 = 1500;

#[test]
fn a_rewriter_that_panics_wakes_who_waits_and_the_next_session_goes_on() {
    within(120, || {
        for backend in [Backend::Signal, Backend::Userfault] {
            let dir = directory();
            let armed = Arc::new(AtomicBool::new(false));
            let panics = Arc::clone(&armed);
            let options = rewriting(backend, move |_| {
                assert!(!panics.load(Ordering::SeqCst), "on purpose");
            });
            let store = open_rewriting(dir.path(), options);
            fill(&store, "a", PoolMode::Direct, NODES);
            store.clone_pool("a", "copy").unwrap();
            let pool = store.pool_with("copy", Access::ReadOnly).unwrap();
            let pending = pool.pending_rewrites();
            armed.store(true, Ordering::SeqCst);
            let (at, size) = last_puddle(&store, "copy");
            // Without userfaultfd a system call is refused at once; with it, a thread must wake it.
            let refused = read_by_the_kernel(at + size - 8).expect_err("it cannot be rewritten");
            assert_eq!(refused.raw_os_error(), Some(14), "EFAULT: {refused}");
            let refused =
                pool.finish_relocation(&mut |_| ControlFlow::Continue(())).expect_err("it panics");
            let text = refused.to_string();
            assert!(text.contains("panicked"), "{backend:?}: {text}");
            assert_eq!(pool.pending_rewrites(), pending, "nothing has changed");
            assert!(
                store.create_pool("new", &Default::default()).is_err(),
                "nothing is changed any more"
            );
            drop((pool, store));
            let store = open_rewriting(dir.path(), RelocationOptions::default());
            let pool = store.pool("copy").unwrap();
            crate::relocate::walk(&store, &pool, NODES);
        }
    });
}

/// Not a test by itself: a program of which a plain load waits for a rewriter that panics. If it is
/// not woken it waits for ever.
#[test]
fn child_whose_load_waits() {
    let Ok(dir) = std::env::var("CENOTE_FRONTIER_DIR") else { return };
    let backend = match std::env::var("CENOTE_FRONTIER_BACKEND").as_deref() {
        Ok("userfault") => Backend::Userfault,
        _ => Backend::Signal,
    };
    let working = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&working);
    let armed = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&armed);
    let options = rewriting(backend, move |_| {
        if panics.load(Ordering::SeqCst) {
            says.store(true, Ordering::SeqCst);
            // Long enough for the load to come.
            std::thread::sleep(Duration::from_millis(500));
            panic!("on purpose");
        }
    });
    let store = open_rewriting(std::path::Path::new(&dir), options);
    let pool = store.pool_with("copy", Access::ReadOnly).unwrap();
    armed.store(true, Ordering::SeqCst);
    let (at, size) = last_puddle(&store, "copy");
    std::thread::scope(|scope| {
        // Another puddle is being rewritten, so the load waits for the turn.
        scope.spawn(|| {
            pool.finish_relocation(&mut |_| ControlFlow::Continue(())).expect_err("it panics")
        });
        scope.spawn(|| {
            while !working.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            println!("waits");
            // SAFETY: of an open pool.
            let word = unsafe { ((at + size - 8) as *const u64).read_volatile() };
            println!("read {word}");
        });
    });
}

#[test]
fn a_plain_load_that_waits_for_a_rewriter_that_panics_fails_and_does_not_wait_for_ever() {
    use std::os::unix::process::ExitStatusExt as _;
    for backend in ["signal", "userfault"] {
        let dir = directory();
        let store = open_rewriting(dir.path(), RelocationOptions::default());
        fill(&store, "a", PoolMode::Direct, NODES);
        store.clone_pool("a", "copy").unwrap();
        store.close().unwrap();
        let child = again("frontier::child_whose_load_waits")
            .env("CENOTE_FRONTIER_DIR", dir.path())
            .env("CENOTE_FRONTIER_BACKEND", backend)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let (said, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(child.wait_with_output()));
        let Ok(ended) = ended.recv_timeout(Duration::from_secs(60)) else {
            // SAFETY: our own child, which was not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("{backend}: the load still waits");
        };
        let ended = ended.unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(out.contains("waits") && !out.contains("read "), "{backend}: {out}\n{err}");
        assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{backend}: {out}\n{err}");
        assert!(err.contains("cannot be rewritten"), "{backend}: {err}");
        let store = open_rewriting(dir.path(), RelocationOptions::default());
        crate::relocate::walk(&store, &store.pool("copy").unwrap(), NODES);
    }
}

#[test]
fn a_pool_that_is_removed_before_it_was_touched_leaves_no_thread_asleep() {
    within(60, || {
        for backend in [Backend::Signal, Backend::Userfault] {
            let dir = directory();
            let store =
                open_rewriting(dir.path(), RelocationOptions { backend, ..Default::default() });
            fill(&store, "a", PoolMode::Direct, NODES);
            store.clone_pool("a", "copy").unwrap();
            drop(store.pool_with("copy", Access::ReadOnly).unwrap());
            let (at, size) = last_puddle(&store, "copy");
            store.remove_pool("copy").unwrap();
            let refused = read_by_the_kernel(at + size - 8).expect_err("nothing is there any more");
            assert_eq!(refused.raw_os_error(), Some(14), "EFAULT: {refused}");
            // Its addresses are used again, and watched again.
            store.clone_pool("a", "again").unwrap();
            let pool = store.pool_with("again", Access::ReadWrite).unwrap();
            crate::relocate::walk(&store, &pool, NODES);
        }
    });
}

static TOUCHED: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicBool = AtomicBool::new(false);

/// An application's handler, which reads what is in a pool.
extern "C" fn touch(_: i32) {
    // SAFETY: the address of an open pool's puddle.
    unsafe { (TOUCHED.load(Ordering::SeqCst) as *const u64).read_volatile() };
    SEEN.store(true, Ordering::SeqCst);
}

#[test]
fn a_handler_that_interrupts_a_thread_while_it_rewrites_does_not_wait_for_it() {
    within(60, || {
        for backend in [Backend::Signal, Backend::Userfault] {
            let dir = directory();
            let working = Arc::new(AtomicBool::new(false));
            let says = Arc::clone(&working);
            let options = rewriting(backend, move |_| {
                says.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(300));
            });
            let store = open_rewriting(dir.path(), options);
            fill(&store, "a", PoolMode::Direct, NODES);
            store.clone_pool("a", "copy").unwrap();
            let pool = store.pool_with("copy", Access::ReadOnly).unwrap();
            let (at, size) = last_puddle(&store, "copy");
            TOUCHED.store(at + size - 8, Ordering::SeqCst);
            SEEN.store(false, Ordering::SeqCst);
            working.store(false, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let (send, thread) = std::sync::mpsc::channel();
                let pool = &pool;
                let rewriting = scope.spawn(move || {
                    // SAFETY: asks for a number.
                    send.send(unsafe { libc::pthread_self() }).unwrap();
                    pool.finish_relocation(&mut |_| ControlFlow::Continue(())).unwrap();
                });
                let thread = thread.recv().unwrap();
                while !working.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let handler = touch as extern "C" fn(i32) as *const () as libc::sighandler_t;
                // SAFETY: the handler reads a word of an open pool; the thread lives until it is
                // joined.
                unsafe {
                    libc::signal(libc::SIGUSR1, handler);
                    libc::pthread_kill(thread, libc::SIGUSR1);
                }
                rewriting.join().unwrap();
            });
            assert!(
                SEEN.load(Ordering::SeqCst),
                "{backend:?}: the signal came when the turn was over"
            );
            crate::relocate::walk(&store, &pool, NODES);
        }
    });
}

#[test]
fn rewriting_that_is_stopped_between_puddles_goes_on_in_the_next_session() {
    let dir = directory();
    let store = open_rewriting(dir.path(), RelocationOptions::default());
    fill(&store, "a", PoolMode::Direct, NODES);
    store.clone_pool("a", "copy").unwrap();
    let pool = store.pool("copy").unwrap();
    let pending = pool.pending_rewrites();
    assert!(pending > 2, "the root puddle was touched, and others were not");
    let mut asked = 0;
    let done = pool
        .finish_relocation(&mut |_| {
            asked += 1;
            if asked == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(
        (asked, pool.pending_rewrites()),
        (2, pending - 1),
        "one was rewritten, and then no more: {done:?}"
    );
    drop(pool);
    store.close().unwrap();
    let store = open_rewriting(dir.path(), RelocationOptions::default());
    let pool = store.pool("copy").unwrap();
    assert_eq!(pool.pending_rewrites(), pending - 1, "what was done is known");
    pool.finish_relocation(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(pool.pending_rewrites(), 0);
    crate::relocate::walk(&store, &pool, NODES);
}

#[test]
fn a_full_disk_registers_nothing_and_leaves_puddles_wholly_old_until_there_is_space() {
    let small = match Mounted::memory("24m") {
        Ok(small) => small,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let dir = small.path().join("store");
    let store = open_rewriting(&dir, RelocationOptions::default());
    fill(&store, "a", PoolMode::Direct, NODES);
    let archive = store.export(&["a"], Vec::new(), ExportOptions::default()).unwrap().0;
    // Until nothing fits any more: clones and imports in turns. Each is there as a whole, or not at
    // all.
    let mut copies = Vec::new();
    let error = loop {
        let name = format!("copy {}", copies.len());
        let made = match copies.len() % 2 {
            0 => store.clone_pool("a", &name).map(drop),
            _ => {
                let options =
                    ImportOptions { names: vec![name.clone()], ..ImportOptions::default() };
                store.import(archive.as_slice(), options).map(drop)
            }
        };
        match made {
            Ok(()) => copies.push(name),
            Err(error) => break error,
        }
        assert!(copies.len() < 50);
    };
    let text = error.to_string();
    assert!(text.contains("space") || text.contains("room"), "{text}");
    assert!(copies.len() > 1 && store.pools().len() == copies.len() + 1, "{text}");
    // What is left is less than a puddle.
    let ballast = small.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    let opened = store.pool(&copies[0]).map(|pool| pool.pending_rewrites());
    let refused = opened.expect_err("its root puddle needs a second file for a moment");
    assert!(refused.to_string().contains("space"), "{refused}");
    assert_eq!(
        store.pools().iter().filter(|pool| pool.pending > 0).count(),
        copies.len(),
        "all as before"
    );
    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    store.remove_pool(&copies.pop().unwrap()).unwrap();
    for name in copies.iter().map(String::as_str).chain(["a"]) {
        crate::relocate::walk(&store, &store.pool(name).unwrap(), NODES);
    }
}
