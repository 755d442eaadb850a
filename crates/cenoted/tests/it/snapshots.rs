//! Snapshots of objects through a daemon.

use crate::common::Daemon;
use crate::objects::{LEN, busy_by, objects_of, start, told};
use crate::permissions::{BOB, as_user, is_root};
use cenote::Store;
use cenote_object::{Blocks, Permission};

#[test]
fn a_snapshot_through_a_daemon_is_what_the_last_psync_left() {
    let daemon = Daemon::start(&[]);
    let elsewhere = tempfile::tempdir().expect("directory");
    let file = daemon.path("snapshot");
    {
        let store = daemon.connect();
        let objects = objects_of(&store);
        objects.pcreate("matrix", LEN, None, 0o600).expect("create");
        let mut writer = start(&daemon, "write");
        for order in ["store 7", "psync", "store 9"] {
            assert_eq!(told(&mut writer, order), "done");
        }
        let busy = objects.snapshot("matrix", &file, Blocks::SharedIfPossible);
        busy_by(busy, "writing", writer.pid());
        assert!(!file.exists(), "nothing is left of what was refused");
        writer.kill();
        // The call waits for the end of the dead client.
        let made = objects.snapshot("matrix", &file, Blocks::SharedIfPossible).expect("snapshot");
        assert!(!made.shared && made.bytes > LEN);
        let again = objects.snapshot("matrix", &file, Blocks::Copied).expect_err("it is there");
        assert_eq!(again.errno(), 17);
        // It was given back: a writer has it at once, and meanwhile there is no snapshot.
        let mut writer = start(&daemon, "write");
        assert_eq!(told(&mut writer, "sum"), "7");
        let refused = objects.restore(&file, Some("again")).expect_err("through a daemon");
        assert!(refused.to_string().contains("stop the daemon"), "{refused}");
        assert_eq!(told(&mut writer, "end"), "detached");
        assert!(writer.ends());
    }
    // It is a snapshot as any other.
    let path = elsewhere.path().join("store");
    let store = Store::open(&path).expect("another store");
    let objects = objects_of(&store);
    objects.restore(&file, None).expect("restore");
    let attached = objects.attach("matrix", Permission::Read, None).expect("attach");
    assert!(
        attached.as_slice().iter().all(|byte| *byte == 7),
        "what was psynced, and nothing else"
    );
    attached.detach().expect("detach");
    drop(objects);
    if !is_root() {
        return;
    }
    as_user(BOB, BOB, || {
        let store = daemon.connect();
        let denied = objects_of(&store).snapshot("matrix", &daemon.path("his"), Blocks::Copied);
        assert_eq!(denied.expect_err("it is not his").errno(), 13);
    });
}
