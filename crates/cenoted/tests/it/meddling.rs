//! A client holds references, an iterator and transactions; other clients, and the operator of
//! daemons, do what they may to its pools and to the daemon. What it holds stays what it was.

use crate::common::{Actor, Counter, Daemon, Item, add, count, listen, make_counter, say};
use cenote::{Access, PermissionChange, Pool, Reader, Store};
use rustix::process::Signal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const ITEMS: u64 = 40;

/// As [`add`], where that may fail.
fn try_add(pool: &Pool) -> cenote::Result<()> {
    pool.write(|tx| {
        let at = tx.root::<Counter>()?.expect("a counter");
        let (number, next) = (tx.get(at)?.count + 1, tx.get(at)?.list);
        let item = tx.alloc(Item { number, next })?;
        let counter = tx.get_mut(at)?;
        (counter.count, counter.twice, counter.list) = (number, 2 * number, Some(item));
        Ok(())
    })
}

/// A child: holds references of one pool, while another thread writes a second one.
pub(crate) fn look(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let (held, written) = (store.pool("held").expect("pool"), store.pool("written").expect("pool"));
    let view = held.read().expect("read");
    let at = view.root::<Counter>().expect("root").expect("a counter");
    let mut next = view.get(at).expect("counter").list;
    let items = std::iter::from_fn(|| {
        let item: &Item = view.get(next?).expect("item");
        next = item.next;
        Some(item)
    });
    // One half by references that are held, the other by an iterator that goes on each time.
    let mut items = items.peekable();
    let kept: Vec<&Item> = items.by_ref().take(ITEMS as usize / 2).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Fails while no daemon of this store lets the pool grow.
                let _ = try_add(&written);
            }
        });
        say("looking");
        while listen() == "look" {
            let last = items.next().expect("an item").number;
            let sum: u64 = kept.iter().map(|item| item.number).sum();
            say(&format!("{sum} {last} {}", count(&held)));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let written = count(&written);
    say(&written.to_string());
}

/// What another client may try with the pools of one that lives, and may not; and what it may do.
fn meddle(daemon: &Daemon) {
    let store = daemon.connect();
    for name in ["held", "written"] {
        assert!(store.remove_pool(name).is_err());
        assert!(store.randomize_pool(name).is_err());
        assert!(store.clone_pool(name, "copy").is_err());
        assert!(store.export(&[name], std::io::sink(), Default::default()).is_err());
        for access in [Access::ReadOnly, Access::ReadWrite, Access::Shared] {
            assert!(store.pool_with(name, access).is_err(), "{name} {access:?}");
        }
        let none = PermissionChange { permissions: Some(0), ..PermissionChange::default() };
        store.set_permissions(name, none).expect("its owner may");
    }
    // Others come and go, where space is.
    let other = store.pool("other").expect("pool");
    make_counter(&other);
    for _ in 0..10 {
        add(&other);
    }
    drop(other);
    store.remove_pool("other").expect("removed");
}

#[test]
fn what_a_client_holds_stays_as_it_was_when_others_meddle() {
    let mut daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        for (name, items) in [("held", ITEMS), ("written", 0)] {
            let pool = store.pool(name).expect("pool");
            make_counter(&pool);
            for _ in 0..items {
                add(&pool);
            }
        }
    }
    let mut looker = Actor::start("looker", &daemon);
    assert_eq!(looker.hear(), "looking");
    let sum: u64 = (ITEMS / 2 + 1..=ITEMS).sum();
    let mut expected = ITEMS / 2;
    let mut looks = |looker: &mut Actor, after: &str| {
        looker.tell("look");
        assert_eq!(looker.hear(), format!("{sum} {expected} {ITEMS}"), "{after}");
        expected -= 1;
    };
    meddle(&daemon);
    looks(&mut looker, "another client");
    looker.signal(Signal::STOP);
    meddle(&daemon);
    looker.signal(Signal::CONT);
    looks(&mut looker, "while it was stopped");
    daemon.kill();
    looks(&mut looker, "without a daemon");
    daemon.restart();
    // It has not connected to this one yet: the byte that it holds says that it lives.
    meddle(&daemon);
    looks(&mut looker, "under the next daemon");
    // A daemon that finds no file of bytes knows nothing, and takes no client to be gone.
    daemon.kill();
    std::fs::remove_file(daemon.store().join("clients")).expect("removed");
    daemon.restart();
    meddle(&daemon);
    std::thread::sleep(std::time::Duration::from_millis(600));
    meddle(&daemon);
    looks(&mut looker, "with another file of bytes");
    // Another store's daemon, where it connects.
    daemon.kill();
    let mut stranger = Daemon::prepare(&[]);
    let mut command = stranger.command();
    command.arg("--socket").arg(daemon.socket());
    stranger.run(&mut command);
    std::thread::sleep(std::time::Duration::from_millis(100));
    looks(&mut looker, "under a stranger");
    stranger.kill();
    daemon.restart();
    looks(&mut looker, "under its own daemon again");
    looker.tell("end");
    let written: u64 = looker.hear().parse().expect("a number");
    assert!(looker.ends());
    let store = daemon.connect();
    assert_eq!(count(&store.pool("held").expect("pool")), ITEMS);
    assert_eq!(count(&store.pool("written").expect("pool")), written);
}

#[test]
fn a_pool_whose_files_have_two_names_is_granted_to_no_client() {
    let mut daemon = Daemon::start(&[]);
    make_counter(&daemon.connect().pool("numbers").expect("pool"));
    daemon.stop();
    let files: Vec<_> =
        std::fs::read_dir(daemon.store().join("puddles")).expect("puddles").collect();
    let files: Vec<_> = files.into_iter().map(|entry| entry.expect("an entry").path()).collect();
    let link = |path: &std::path::PathBuf| {
        daemon.path(&path.file_name().expect("a name").to_string_lossy())
    };
    files.iter().for_each(|path| std::fs::hard_link(path, link(path)).expect("linked"));
    let links: Vec<_> = files.iter().map(link).collect();
    daemon.restart();
    let store = daemon.connect();
    let refused = store.pool("numbers").expect_err("its files have two names").to_string();
    assert!(refused.contains("hard links"), "{refused}");
    // Nothing of the refusal stays.
    links.iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
    assert_eq!(crate::common::add(&store.pool("numbers").expect("pool")), 1);
}
