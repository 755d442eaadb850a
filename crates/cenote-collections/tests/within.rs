//! Code of the caller's that the library calls calls the library: from a transaction, under a view,
//! from progress reports, from streams of archives, and from `Hash` and `Eq` of keys.
//!
//! Every act is tried in every place. None may wait for ever, and none may change what a reference
//! that is held leads to; what comes of it otherwise, an error or success, is checked by the state
//! of the pool afterwards.

use crate::common::{assert_sound, directory};
use cenote::{Access, AutoTrim, Persist, Pool, Ptr, Reader, Store, TraceOptions};
use cenote_collections::HashMap;
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[derive(Persist)]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

/// A key whose methods run what this thread has put there.
#[derive(Persist, Clone, Copy, Debug)]
struct Calling(u64);

thread_local! {
    static CALLED: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

fn call() {
    // Not from within itself.
    if let Some(act) = CALLED.with(|called| called.borrow_mut().take()) {
        act();
        CALLED.with(|called| *called.borrow_mut() = Some(act));
    }
}

impl PartialEq for Calling {
    fn eq(&self, other: &Self) -> bool {
        call();
        self.0 == other.0
    }
}

impl Eq for Calling {}

impl Hash for Calling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        call();
        self.0.hash(state);
    }
}

struct Calls<T, F: FnMut()>(T, F);

impl<T: Write, F: FnMut()> Write for Calls<T, F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.1)();
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        (self.1)();
        self.0.flush()
    }
}

impl<T: Read, F: FnMut()> Read for Calls<T, F> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        (self.1)();
        self.0.read(bytes)
    }
}

/// A store with two pools, of which the first is open and trimmed by itself.
#[derive(Clone)]
struct TwoPoolStore {
    store: Store,
    pool: Pool,
    head: Ptr<Node>,
    map: HashMap<Calling, u64>,
    trims: Arc<Mutex<Option<AutoTrim>>>,
    /// Leads to where a pool was.
    stray: Ptr<Node>,
    /// Where backups go.
    path: PathBuf,
}

const NODES: u64 = 300;

/// Keys that no map has yet.
static NEXT: AtomicU64 = AtomicU64::new(1000);

fn place(path: &std::path::Path) -> TwoPoolStore {
    let store = Store::open(path).expect("a store");
    let fill = |pool: &Pool| {
        pool.write(|tx| -> cenote::Result<_> {
            let mut next = None;
            for value in (0..NODES).rev() {
                next = Some(tx.alloc(Node { value, next })?);
                // Leaks, for what looks for them.
                tx.alloc(Node { value: 1 << 40, next: None })?;
            }
            let head = next.expect("nodes");
            tx.set_root(head)?;
            let map = HashMap::new(tx)?;
            for key in 0..40 {
                map.insert(tx, Calling(key), key)?;
            }
            let map_root = tx.alloc(map)?;
            tx.set_root_at(1, Some(map_root))?;
            Ok((head, map))
        })
        .expect("filled")
    };
    fill(&store.pool("other").expect("a pool"));
    let (stray, _) = fill(&store.pool("gone").expect("a pool"));
    store.remove_pool("gone").expect("removed");
    let pool = store.pool("test").expect("a pool");
    let (head, map) = fill(&pool);
    let path = path.with_extension("copies");
    std::fs::create_dir(&path).expect("a directory");
    TwoPoolStore { store, pool, head, map, trims: Arc::default(), stray, path }
}

fn sum(reader: &impl Reader, head: Ptr<Node>) -> u64 {
    let (mut sum, mut next) = (0, Some(head));
    while let Some(node) = next {
        let node = reader.get(node).expect("a node");
        sum += node.value;
        next = node.next;
    }
    sum
}

/// How long an act is waited for: thousands of times what it takes.
const WAIT: Duration = Duration::from_secs(4);

const SUM: u64 = NODES * (NODES - 1) / 2;

type Act = fn(&TwoPoolStore);

/// What is called. Whether it works is not asked here.
const ACTS: [(&str, Act); 31] = [
    ("write", |at| {
        let _ = at.pool.write(|tx| -> cenote::Result<()> {
            for _ in 0..100 {
                let new = tx.alloc(Node { value: 1 << 41, next: None })?;
                tx.free(new)?;
                tx.alloc([0xffu8; 64])?;
            }
            Ok(())
        });
    }),
    ("free the second", |at| {
        let _ = at.pool.write(|tx| -> cenote::Result<()> {
            let second = tx.get(at.head)?.next.expect("a second");
            // Free, and given up: it is there again.
            tx.free(second)?;
            Err(cenote::Error::Aborted("on purpose".into()))
        });
    }),
    ("read", |at| {
        let _ = at.pool.read().map(|view| assert_eq!(sum(&view, at.head), SUM));
    }),
    ("insert", |at| {
        let _ = at.pool.write(|tx| -> cenote::Result<()> {
            for key in 100..180 {
                at.map.insert(tx, Calling(key), key)?;
            }
            Ok(())
        });
    }),
    ("two pools", |at| {
        if let Ok(other) = at.store.pool("other") {
            let _ = at.store.write(&[&at.pool, &other], |tx| tx.alloc(1u64));
        }
    }),
    ("check", |at| drop(at.pool.check())),
    ("trim", |at| drop(at.pool.trim())),
    ("collect", |at| drop(at.pool.collect())),
    ("reclaim", |at| drop(at.pool.reclaim())),
    ("remove", |at| assert!(at.store.remove_pool("test").is_err(), "it is in use")),
    ("move", |at| assert!(at.store.randomize_pool("test").is_err(), "it is in use")),
    ("move the other", |at| drop(at.store.randomize_pool("other"))),
    ("copy", |at| drop(at.store.clone_pool("other", "copy"))),
    ("export", |at| {
        let _ = at.store.export(&["other"], std::io::sink(), Default::default());
    }),
    ("create", |at| drop(at.store.pool("new"))),
    ("close", |at| assert!(at.store.clone().close().is_err(), "it is in use")),
    ("quiesce", |at| drop(at.store.quiesce())),
    ("open to read", |at| drop(at.store.pool_with("other", Access::ReadOnly))),
    ("clear", |at| {
        let _ = at.pool.write(|tx| at.map.clear(tx));
    }),
    ("count", |at| drop(at.pool.stats())),
    ("ask for damage", |at| drop((at.pool.heap_damage(), at.store.damaged_files()))),
    ("walk", |at| drop(at.pool.heap().walk(&mut |_| ()))),
    ("look at superblocks", |at| drop(at.pool.heap().superblocks(&mut |_| ()))),
    ("ask for an owner", |at| {
        assert!(at.pool.heap().owner(at.head.addr() + (1 << 40)).is_none());
    }),
    ("ask for a root", |at| drop((at.pool.heap().root(0), at.pool.named_roots()))),
    ("follow what dangles", |at| {
        let _ = at.pool.read().map(|view| view.get(at.stray).is_err());
    }),
    ("back up", |at| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        drop(at.store.backup(at.path.join(format!("copy{number}"))));
    }),
    ("make durable", |at| drop((at.pool.psync(), at.store.psync(&[&at.pool])))),
    ("finish a move", |at| drop(at.pool.finish_relocation(&mut |_| ControlFlow::Continue(())))),
    ("stop trimming", |at| {
        // Time for it to be in the middle of a trim.
        std::thread::sleep(Duration::from_millis(5));
        drop(at.trims.lock().unwrap().take());
    }),
    ("remove the other", |at| drop(at.store.remove_pool("other"))),
];

type Within = fn(&TwoPoolStore, Act);

/// Where from.
const WITHIN: [(&str, Within); 15] = [
    ("a transaction", |at, act| {
        let _ = at.pool.write(|tx| -> cenote::Result<()> {
            let held = tx.get(at.head)?;
            act(at);
            assert_eq!((held.value, sum(tx, at.head)), (0, SUM));
            let held = tx.get_mut(at.head)?;
            act(at);
            held.value = 0;
            Ok(())
        });
    }),
    ("a view", |at, act| {
        let view = at.pool.read().expect("a view");
        let held: Vec<&u64> = at.map.values(&view).expect("values").collect();
        let before: u64 = held.iter().copied().sum();
        act(at);
        assert_eq!((held.into_iter().sum::<u64>(), sum(&view, at.head)), (before, SUM));
    }),
    ("an iterator to change", |at, act| {
        let _ = at.pool.write(|tx| -> cenote::Result<()> {
            for (seen, (key, value)) in at.map.iter_mut(tx)?.enumerate() {
                if seen % 16 == 0 {
                    act(at);
                }
                assert_eq!(key.0, *value);
            }
            Ok(())
        });
    }),
    ("a reclaim", |at, act| {
        let mut options = cenote::ReclaimOptions::default();
        let mut progress = |_: &cenote::ReclaimProgress| {
            act(at);
            ControlFlow::Continue(())
        };
        options.progress = Some(&mut progress);
        let _ = at.pool.reclaim_with(options);
    }),
    ("a trim", |at, act| {
        let _ = at.pool.trim_with(&mut |_| {
            act(at);
            ControlFlow::Continue(())
        });
    }),
    ("a check", |at, act| {
        let mut progress = |_: &cenote::TraceProgress| {
            act(at);
            ControlFlow::Continue(())
        };
        let mut options = TraceOptions::default();
        options.workers = std::num::NonZero::new(1);
        options.interval = Duration::ZERO;
        options.progress = Some(&mut progress);
        let _ = at.pool.check_with(options);
    }),
    ("an export", |at, act| {
        let mut calls = 0;
        let act = || {
            calls += 1;
            if calls % 8 == 1 {
                act(at);
            }
        };
        let _ = at.store.export(&["other"], Calls(std::io::sink(), act), Default::default());
    }),
    ("an import", |at, act| {
        let Ok((archive, _)) = at.store.export(&["other"], Vec::new(), Default::default()) else {
            return;
        };
        let mut calls = 0;
        let act = || {
            calls += 1;
            if calls % 8 == 1 {
                act(at);
            }
        };
        let options =
            cenote::ImportOptions { names: vec!["imported".into()], ..Default::default() };
        let _ = at.store.import(Calls(&archive[..], act), options);
    }),
    ("a hash", |at, act| {
        from_keys(at, act, || {
            let _ = at.pool.write(|tx| -> cenote::Result<()> {
                // Enough new ones that buckets are split.
                let first = NEXT.fetch_add(40, Ordering::Relaxed);
                for key in first..first + 40 {
                    at.map.insert(tx, Calling(key), key)?;
                }
                at.map.remove(tx, &Calling(3))?;
                at.map.entry(tx, Calling(200))?.or_insert(200)?;
                Ok(())
            });
        })
    }),
    ("a comparison", |at, act| {
        from_keys(at, act, || {
            let view = at.pool.read().expect("a view");
            for key in 0..40 {
                let _ = at.map.get(&view, &Calling(key)).expect("a map");
            }
        })
    }),
    ("a walk", |at, act| {
        let mut blocks = 0u64;
        let _ = at.pool.heap().walk(&mut |_| {
            blocks += 1;
            if blocks % 256 == 1 {
                act(at);
            }
        });
    }),
    ("a look at superblocks", |at, act| {
        let mut superblocks = 0u64;
        let _ = at.pool.heap().superblocks(&mut |_| {
            superblocks += 1;
            if superblocks % 128 == 1 {
                act(at);
            }
        });
    }),
    ("a backup", |at, act| {
        let mut calls = 0u64;
        let _ = at.store.backup_with(at.path.join("copy"), &mut |_, _| {
            calls += 1;
            if calls % 8 == 1 {
                act(at);
            }
            true
        });
        let _ = std::fs::remove_dir_all(at.path.join("copy"));
    }),
    ("a filter of a check", |at, act| filtered(at, act, |at| drop(at.pool.check()))),
    ("a filter of a collection", |at, act| filtered(at, act, |at| drop(at.pool.collect()))),
];

/// Its filter does what its values are asked for, and names no pointer.
#[derive(Persist)]
#[persist(name = "within::Filtered")]
struct Filtered(u64);

/// Runs `work`, in which a filter calls `act`.
fn filtered(at: &TwoPoolStore, act: Act, work: impl FnOnce(&TwoPoolStore)) {
    cenote::filter::register::<Filtered>(|_, _| call()).expect("registered");
    if at.pool.named_root::<Filtered>("filtered").expect("a pool").is_none() {
        let made = at.pool.write(|tx| -> cenote::Result<()> {
            let made = tx.alloc(Filtered(1))?;
            tx.set_named_root("filtered", Some(made))
        });
        made.expect("committed");
    }
    let place = at.clone();
    CALLED.with(|called| *called.borrow_mut() = Some(Box::new(move || act(&place))));
    work(at);
    CALLED.with(|called| called.borrow_mut().take());
}

/// Runs `work`, in which methods of keys call `act`.
fn from_keys(at: &TwoPoolStore, act: Act, work: impl FnOnce()) {
    let (place, calls) = (at.clone(), std::cell::Cell::new(0u32));
    let called: Box<dyn Fn()> = Box::new(move || {
        calls.set(calls.get() + 1);
        // Not each time: there are hundreds.
        if calls.get() % 64 == 5 {
            act(&place);
        }
    });
    CALLED.with(|called_now| *called_now.borrow_mut() = Some(called));
    work();
    CALLED.with(|called| called.borrow_mut().take());
}

/// What holds after each act.
fn is_whole(at: &TwoPoolStore) {
    let view = at.pool.read().expect("a view");
    assert_eq!(sum(&view, at.head), SUM);
    for key in at.map.keys(&view).expect("keys").copied().collect::<Vec<_>>() {
        assert_eq!(at.map.get(&view, &key).expect("a map"), Some(&key.0));
    }
    drop(view);
    let report = at.pool.check().expect("a report");
    assert!(report.dangling.is_empty(), "{report:?}");
}

#[test]
fn callers_code_may_call_any_operation_when_it_is_called() {
    let mut wrong: Vec<String> = Vec::new();
    for (from, within) in WITHIN {
        let (done, ended) = mpsc::channel::<&str>();
        let tried = std::thread::spawn(move || {
            let directory = directory();
            let at = place(directory.path());
            for (what, act) in ACTS {
                if what == "stop trimming" {
                    let trims = at.pool.trim_by(Duration::from_millis(1)).expect("a thread");
                    *at.trims.lock().unwrap() = Some(trims);
                }
                within(&at, act);
                drop(at.trims.lock().unwrap().take());
                is_whole(&at);
                done.send(what).expect("heard");
            }
            at.pool.collect().expect("collected");
            assert_sound(&at.pool);
            let TwoPoolStore { store, pool, path, .. } = at;
            std::fs::remove_dir_all(path).expect("removed");
            drop(pool);
            // A thread that trimmed ends soon after it was left.
            let in_use = |closed: cenote::Result<()>| match closed {
                Err(cenote::Error::Store(StoreError::InUse { handles })) => handles,
                other => panic!("{other:?}"),
            };
            while in_use(store.clone().close()) > 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            store.close().expect("closed");
        });
        let heard = ACTS
            .iter()
            .try_for_each(|(what, _)| ended.recv_timeout(WAIT).map(drop).map_err(|e| (*what, e)));
        match heard {
            Err((what, mpsc::RecvTimeoutError::Timeout)) => {
                wrong.push(format!("from {from}: {what} waits for ever"));
            }
            Err((what, _)) => wrong.push(format!("from {from}: {what} fails")),
            Ok(()) if tried.join().is_err() => wrong.push(format!("from {from}: the end")),
            Ok(()) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A check that does not see that its thread holds the heap waits for itself.
#[test]
fn a_report_that_asks_a_heap_which_is_not_known_to_be_held_is_found() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        plant(Bug::HeldNotSeen);
        let directory = directory();
        let at = place(directory.path());
        filtered(&at, |at| drop(at.pool.stats()), |at| drop(at.pool.check()));
        done.send(()).expect("heard");
    });
    assert_eq!(ended.recv_timeout(WAIT), Err(mpsc::RecvTimeoutError::Timeout));
}
