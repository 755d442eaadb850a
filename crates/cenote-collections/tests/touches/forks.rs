//! Forks while threads touch a pool for the first time: the child has none of them, and waits for
//! none of them.

use super::threads::{Round, act};
use super::{Bank, KINDS, WAYS, displace, look, number, open, opened, prepare, seeds, whole};
use crate::common::{directory, random};
use cenote::{Access, Backend, Reader, Result, Store};
use cenote_testkit::child::again;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DIR: &str = "CENOTE_TOUCH_FORK_DIR";
const FORKS: u64 = 48;
/// Seconds after which a child counts as waiting for ever.
const ALARM: u32 = 8;

/// What the child does with what its parent had; 0 if that is as it should be.
fn in_child(at: &Round, own: &Path, what: u64) -> i32 {
    let store = at.store.clone();
    let refused = |result: Result<()>| i32::from(result.is_ok());
    match what {
        // By a pointer, which was valid, into a puddle that may be pending: no error, or none of
        // the memory.
        0 => refused(store.pool(at.name).and_then(|pool| look(&pool.read()?).map(drop))),
        1 => refused(store.clone_pool("bank", "of a child").map(drop)),
        // What cannot fail answers or panics.
        2 => std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(store.pools())))
            .map_or(0, |()| 0),
        // Destructors of this thread and of the process.
        3 => std::process::exit(0),
        4 => match Store::open(own.join(std::process::id().to_string())) {
            Err(_) => 2,
            Ok(store) => {
                match store.pool("p").and_then(|pool| pool.write(|tx| tx.alloc(1u64).map(drop))) {
                    Err(_) => 3,
                    Ok(()) => i32::from(store.close().is_err()) * 4,
                }
            }
        },
        _ => std::thread::spawn(move || drop(store)).join().map_or(5, |()| 0),
    }
}

/// Not a test by itself: forks again and again beside threads that touch a pool.
#[test]
fn forker() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let mut seed = number("CENOTE_TOUCH_CHILD", 1);
    let name = if number("CENOTE_TOUCH_COPY", 0) == 1 { "copy" } else { "bank" };
    let store = open(dir, Access::ReadWrite, Backend::Signal).expect("a store");
    let at = Round { store, name, access: Access::ReadWrite, committed: AtomicU64::new(0) };
    let stop = AtomicBool::new(false);
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (at, stop) = (&at, &stop);
            scope.spawn(move || {
                let mut seed = seed * 10 + thread;
                while !stop.load(Ordering::Relaxed) {
                    let what = random(&mut seed);
                    act(at, &mut seed, what).expect("an act");
                    // Stores come and go: tables of the process are in use.
                    if what.is_multiple_of(4) {
                        let path = dir.with_extension(format!("beside {thread}"));
                        Store::open(path).and_then(Store::close).expect("a store");
                    }
                }
            });
        }
        for turn in 0..FORKS {
            std::thread::sleep(Duration::from_micros(random(&mut seed) % 3000));
            // With a pool and a view, which the child has then.
            let pool = turn.is_multiple_of(2).then(|| opened(&at.store, name, at.access));
            let view = pool
                .as_ref()
                .filter(|_| turn.is_multiple_of(4))
                .map(|pool| pool.read().expect("a view"));
            let kept = view.as_ref().map(|view| {
                view.get(view.root::<Bank>().expect("a root").expect("a bank")).expect("a bank")
            });
            // SAFETY: the child runs Rust code, which is what is asked here: whether it can.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: system calls.
                unsafe { libc::alarm(ALARM) };
                if turn % 8 == 4 {
                    // Must not be there.
                    let seen = std::hint::black_box(kept.map_or(0, |bank| bank.transfers));
                    std::process::exit(100 + (seen % 2) as i32);
                }
                drop(view);
                drop(pool);
                let code = in_child(&at, &dir.with_extension("own"), turn % 6);
                // SAFETY: a system call.
                unsafe { libc::_exit(code) };
            }
            drop(view);
            drop(pool);
            let mut status = 0;
            // SAFETY: a system call with a pointer to a local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            let fine = match libc::WIFEXITED(status) {
                true => libc::WEXITSTATUS(status) == 0,
                false => libc::WTERMSIG(status) == libc::SIGSEGV,
            };
            let what = (turn, turn % 8 == 4, turn % 6, status);
            if !fine {
                wrong.push(what);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(wrong.is_empty(), "fork, by a reference, what, status: {wrong:?}");
}

fn round(seed: u64) -> Result<()> {
    let outer = directory();
    let dir = outer.path().join("store");
    let kind = KINDS[seed as usize % KINDS.len()];
    prepare(&dir, kind, seed)?;
    std::fs::create_dir(dir.with_extension("own")).expect("a directory");
    let name = displace(&dir, WAYS[seed as usize % WAYS.len()])?;
    let ran = again("touches::forks::forker")
        .env(DIR, &dir)
        .env("CENOTE_TOUCH_CHILD", seed.to_string())
        .env("CENOTE_TOUCH_COPY", u64::from(name == "copy").to_string())
        .output()
        .expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "seed {seed}, {kind:?}: {out}\n{err}");
    whole(&dir, name, Access::ReadWrite, Backend::Signal)?;
    Ok(())
}

#[test]
fn a_fork_while_faults_relocate_has_a_child_that_waits_for_no_thread() {
    seeds(2).for_each(|seed| super::threads::bounded(seed, round));
}
