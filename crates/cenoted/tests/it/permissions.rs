//! Who may do what: owner, group and mode of pools, as of files, for callers under several real
//! ids.
//!
//! Ids are those of a thread of this process, which the kernel takes for the peer's when it
//! connects; that needs the superuser.

use crate::common::{Daemon, add, count, make_counter};
use crate::hostile::Raw;
use cenote::{Access, Error, PermissionChange, PoolOptions, Store};
use cenote_proto::{Refusal, Reply, Request};
use cenote_store::StoreError;
use rustix::fs::{Gid, Uid};
use std::os::fd::AsRawFd;

pub(crate) const ALICE: u32 = 61_001;
pub(crate) const BOB: u32 = 61_002;
const CAROL: u32 = 61_003;
pub(crate) const STAFF: u32 = 61_100;

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: callers of several users take the superuser");
    }
    root
}

/// Runs in a thread that acts as that user, in that group and no other.
pub(crate) fn as_user<R: Send>(uid: u32, gid: u32, work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            rustix::thread::set_thread_groups(&[]).expect("groups");
            let (gid, uid) = (Gid::from_raw(gid), Uid::from_raw(uid));
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("gid");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("uid");
            work()
        });
        acting.join().expect("the user's thread")
    })
}

fn is_refused<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Store(StoreError::Permission { .. })))
}

#[test]
fn owner_group_and_mode_decide_who_may_read_and_write() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let connect = || Store::connect(daemon.socket()).expect("connect");
    as_user(ALICE, STAFF, || {
        let store = connect();
        let options = PoolOptions { permissions: 0o640, ..Default::default() };
        let pool = store.create_pool("hers", &options).expect("create");
        make_counter(&pool);
        add(&pool);
        assert_eq!((store.pools()[0].record.uid, store.pools()[0].record.gid), (ALICE, STAFF));
        assert!(std::fs::read_dir(daemon.store()).is_err(), "the files are the daemon's");
    });
    as_user(BOB, STAFF, || {
        let store = connect();
        assert_eq!(
            count(&store.pool_with("hers", Access::ReadOnly).expect("the group may read")),
            1
        );
        assert!(is_refused(&store.pool_with("hers", Access::ReadWrite)), "and not write");
        assert!(is_refused(&store.remove_pool("hers").map(drop)), "nor remove");
        let change = PermissionChange { permissions: Some(0o666), ..Default::default() };
        assert!(is_refused(&store.set_permissions("hers", change)), "nor help itself");
    });
    as_user(CAROL, CAROL, || {
        let store = connect();
        assert!(is_refused(&store.pool_with("hers", Access::ReadOnly)), "others may nothing");
        store.create_pool("own", &PoolOptions::default()).expect("but make their own");
    });
    as_user(ALICE, STAFF, || {
        let store = connect();
        let give = PermissionChange { uid: Some(CAROL), ..Default::default() };
        assert!(is_refused(&store.set_permissions("hers", give)), "only the superuser gives away");
        let change = PermissionChange { permissions: Some(0o662), ..Default::default() };
        store.set_permissions("hers", change).expect("chmod");
        let bad = PermissionChange { permissions: Some(0o4666), ..Default::default() };
        assert!(store.set_permissions("hers", bad).is_err());
    });
    as_user(BOB, STAFF, || {
        assert_eq!(add(&connect().pool("hers").expect("the group writes now")), 2)
    });
    // Writing without reading is nothing: the mapping can be read.
    as_user(CAROL, CAROL, || assert!(is_refused(&connect().pool_with("hers", Access::ReadWrite))));
    let change = PermissionChange { uid: Some(CAROL), gid: Some(CAROL), permissions: Some(0o600) };
    connect().set_permissions("hers", change).expect("the superuser gives it away");
    as_user(ALICE, STAFF, || assert!(is_refused(&connect().pool_with("hers", Access::ReadOnly))));
    as_user(CAROL, CAROL, || {
        let store = connect();
        assert_eq!(count(&store.pool("hers").expect("it is hers")), 2);
        store.remove_pool("hers").expect("to remove, too");
    });
}

#[test]
fn only_the_keeper_of_a_store_has_it_copied() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    std::fs::create_dir(daemon.path("copies")).expect("made");
    let target = daemon.path("copies").join("copy");
    let request = Request::Backup { target: target.display().to_string(), within_ms: 0 };
    as_user(BOB, BOB, || {
        let denied = Raw::connect(&daemon).ask(&request).0;
        let is_denied = |detail: &str| detail.contains("only the superuser and the daemon");
        assert!(
            matches!(&denied, Reply::Refused(Refusal::Other { detail, .. }) if is_denied(detail)),
            "{denied:?}"
        );
    });
    assert!(!target.exists());
    let made = Raw::connect(&daemon).ask(&request).0;
    assert!(matches!(made, Reply::BackedUp { .. }) && target.exists(), "{made:?}");
}

#[test]
fn a_descriptor_for_reading_cannot_be_opened_again_for_writing() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    {
        let options = PoolOptions { permissions: 0o644, ..Default::default() };
        make_counter(&daemon.connect().create_pool("public", &options).expect("create"));
    }
    as_user(BOB, BOB, || {
        let mut raw = Raw::connect(&daemon);
        let denied = raw.ask(&Request::OpenPool { name: "public".into(), writable: true }).0;
        assert!(matches!(denied, Reply::Refused(Refusal::Permission { .. })), "{denied:?}");
        let Reply::Pool { record, .. } =
            raw.ask(&Request::OpenPool { name: "public".into(), writable: false }).0
        else {
            panic!("not granted")
        };
        let (_, files) = raw.ask(&Request::Puddles { pool: record.id, first: 0 });
        for file in &files {
            for path in ["/proc/self/fd", "/proc/thread-self/fd"] {
                let again = format!("{path}/{}", file.as_raw_fd());
                let opened = std::fs::OpenOptions::new().read(true).write(true).open(&again);
                let denied = opened.expect_err("opened for writing").kind();
                assert_eq!(denied, std::io::ErrorKind::PermissionDenied, "{again}");
            }
        }
        assert_eq!(files.len(), 1);
    });
}
