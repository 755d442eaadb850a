//! A copy of an open store that a daemon was told to accept: its clients are given what was found
//! whole, as programs of an embedded store are.

use crate::common::{Actor, Daemon, listen, make_counter, say};
use cenote::{CopyPolicy, Error, ErrorKind, OpenOptions, PowerLossPolicy, Store};
use cenote_object::{
    Blocks, Keyring, Locking, MasterKey, Mode, ObjectError, ObjectOptions, Objects, ObjectsOptions,
    Permission,
};
use cenote_store::StoreError;
use cenote_testkit::directories;
use cenoted::{Config, Server};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const LEN: u64 = 64 << 10;

fn key() -> Keyring {
    let mut bytes = *b"a key of thirty-two bytes, known";
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
    Keyring::new(key).locking(Locking::IfPossible)
}

fn objects_of(store: &Store) -> Objects {
    Objects::open(&store.handle(), &ObjectsOptions::default()).expect("objects")
}

fn outcome<T>(result: Result<T, ObjectError>) -> &'static str {
    match result {
        Ok(_) => "had",
        Err(ObjectError::NotCovered { .. }) => "not covered",
        Err(ObjectError::Unverified { .. }) => "unverified",
        Err(ObjectError::Store(StoreError::ObjectDamaged { .. })) => "damaged",
        Err(ObjectError::Store(StoreError::Refused { kind: ErrorKind::Damaged, detail }))
            if detail.contains("show whether it is") =>
        {
            "not covered"
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// A child: attaches and copies what it is told, and says how that went.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let objects = objects_of(&store);
    let key = key();
    loop {
        let told = listen();
        let Some((what, rest)) = told.split_once(' ') else { return };
        let key = (rest == "sealed").then_some(&key);
        say(match what {
            "read" => outcome(objects.attach(rest, Permission::Read, key)),
            "write" => outcome(objects.attach(rest, Permission::ReadWrite, key)),
            "snapshot" => {
                let path = socket.with_file_name("snapshot");
                let _ = std::fs::remove_file(&path);
                outcome(objects.snapshot(rest, &path, Blocks::Copied))
            }
            _ => match store.pool(rest) {
                Ok(_) => "had",
                Err(Error::Store(StoreError::Refused { detail, .. }))
                    if detail.contains("not checked") =>
                {
                    "not checked"
                }
                Err(other) => panic!("{other:?}"),
            },
        });
    }
}

/// A copy of a store that was made while it was open, with a plain and a sealed object and a pool;
/// the sealed one's file, and where its data begin.
fn copy_of_open(daemon: &Daemon) -> (PathBuf, PathBuf, u64) {
    let copy = daemon.path("copy");
    let store = Store::open(daemon.store()).expect("opens");
    make_counter(&store.pool("numbers").expect("pool"));
    // A pool that was in use is refused in any case.
    store.close().expect("closed");
    let store = Store::open(daemon.store()).expect("opens");
    let objects = objects_of(&store);
    for (name, at_rest) in [("plain", Mode::None), ("sealed", Mode::Authenticated)] {
        let key = at_rest.has_key().then(key);
        let options = ObjectOptions { at_rest, permissions: 0o600 };
        objects.pcreate_with(name, LEN, key.as_ref(), &options).expect("created");
        let mut object =
            objects.attach(name, Permission::ReadWrite, key.as_ref()).expect("attached");
        object.as_mut_slice().expect("writable").fill(7);
        object.psync().expect("psynced");
        object.detach().expect("detached");
    }
    objects.checkpoint().expect("checkpoint");
    let info = objects.info("sealed").expect("known").object;
    directories::copy(&daemon.store(), &copy);
    drop(objects);
    store.close().expect("closed");
    let file = copy.join(info.file());
    (copy, file, info.data_offset())
}

/// A child: is a daemon that keeps the copy that it is told of, until its input ends.
pub(crate) fn keep(socket: &Path) {
    let told = listen();
    let (policy, copy) = told.split_once(' ').expect("a policy and a path");
    let power_loss =
        if policy == "as-is" { PowerLossPolicy::AsIs } else { PowerLossPolicy::Refuse };
    let mut config = Config::new(copy, socket);
    config.options =
        OpenOptions { copy: CopyPolicy::CheckAndOpen, power_loss, ..OpenOptions::default() };
    let server = Server::start(&config, None).expect("started");
    let (stop, stopped) = UnixStream::pair().expect("a pair");
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run(stopped.as_fd()));
        say("serving");
        listen();
        drop(stop);
        serving.join().expect("no panic").expect("served");
    });
}

/// What a client of a daemon that keeps this copy hears.
fn answers(daemon: &Daemon, copy: &Path, policy: &str, orders: &[&str]) -> Vec<String> {
    let mut keeper = Actor::start("copy-daemon", daemon);
    keeper.tell(&format!("{policy} {}", copy.display()));
    assert_eq!(keeper.hear(), "serving");
    let mut client = Actor::start("copy-client", daemon);
    let answers = orders.iter().map(|order| {
        client.tell(order);
        client.hear()
    });
    let answers = answers.collect();
    assert!(client.ends());
    assert!(keeper.ends());
    answers
}

#[test]
fn a_client_of_a_daemon_that_keeps_an_accepted_copy_is_given_what_was_found_whole() {
    let daemon = Daemon::prepare(&[]);
    let (copy, sealed, data) = copy_of_open(&daemon);
    let orders = ["read plain", "write plain", "snapshot plain", "snapshot sealed", "read sealed"];
    let heard = answers(&daemon, &copy, "refuse", &orders);
    assert_eq!(heard, ["not covered", "not covered", "not covered", "unverified", "had"]);
    // Once it was verified, by this client; the next one does that again.
    let orders = ["write sealed", "snapshot sealed", "pool numbers"];
    let heard = answers(&daemon, &copy, "refuse", &orders);
    assert_eq!(heard, ["had", "had", "not checked"]);
    let heard = answers(&daemon, &copy, "as-is", &["read plain", "snapshot plain"]);
    assert_eq!(heard, ["had", "had"]);
    // A page of another moment, wherever it lies.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(sealed).expect("the file");
    for page in [0, LEN / 4096 - 1] {
        let at = data + page * 4096 + 100;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("written");
        let orders = ["read sealed", "write sealed", "snapshot sealed"];
        let heard = answers(&daemon, &copy, "refuse", &orders);
        assert_eq!(heard, ["damaged", "damaged", "unverified"], "page {page}");
        file.write_all_at(&byte, at).expect("written");
    }
}
