//! Commands that ask a daemon: one in this process, which the test starts itself.

use crate::common::{Fixture, run, with_pool};
use cenote_testkit::child::{self, Talking};
use cenoted::{Config, Server};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A daemon of a fixture's store, while something is done.
fn with_daemon(fixture: &Fixture, work: impl FnOnce(&str)) {
    let socket: PathBuf = fixture.dir.path().join("socket");
    let server = Server::start(&Config::new(&fixture.store, &socket), None).expect("started");
    let (stop, stopped) = UnixStream::pair().expect("a pair");
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run(stopped.as_fd()));
        work(socket.to_str().expect("text"));
        drop(stop);
        serving.join().expect("no panic").expect("served");
    });
    assert!(!socket.exists());
}

#[test]
fn top_shows_clients_pools_and_rates_to_people_and_to_programs() {
    let fixture = with_pool();
    with_daemon(&fixture, |socket| {
        let mut other = cenote::DaemonWatcher::connect(socket).expect("connected");
        let object = run(["top", socket, "--once", "--json", "--interval", "0.1"]).exits(0).json();
        assert_eq!(object["sessions"], 2);
        let clients = object["clients"].as_array().expect("a list");
        assert_eq!(clients.iter().filter(|client| client["own"] == true).count(), 1);
        let here = clients
            .iter()
            .find(|client| client["pid"] == std::process::id())
            .expect("this process");
        assert_eq!(
            (&here["state"], &here["uid"]),
            (&"attached".into(), &cenote_sys::process::uid().into())
        );
        assert_eq!(object["pools"][0]["pool"], "words");
        // Three questions of its own in an interval, at least.
        assert!(object["messages_per_s"].as_f64().is_some_and(|rate| rate > 1.0), "{object}");
        let text = run(["top", socket, "--once", "--interval", "0.1"]).exits(0).out;
        for part in [
            "clients 2",
            "(this command)",
            "words",
            "attached",
            "recoveries 0 (+0)",
            ", up ",
            "\n\nPOOL ",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains('\x1b'), "{text}");
        assert_eq!(other.stat().expect("it serves").recoveries, 0);
        assert!(run(["logs", "list", socket]).exits(0).out.contains("no log is set aside"));
        assert!(run(["chmod", socket, "words", "640"]).exits(0).out.contains("mode 640"));
    });
    run(["top", fixture.store.join("nothing").to_str().expect("text"), "--once"])
        .complains(3, &["socket of a daemon"]);
    run(["top", "/x", "--interval", "0"]).complains(2, &["0.05"]);
}

#[test]
fn pools_travel_through_a_daemon_by_the_commands_of_an_embedded_store() {
    let fixture = with_pool();
    let store = cenote::Store::open(&fixture.store).expect("a store");
    let filled = store.pool("words").expect("a pool").write(|tx| -> cenote::Result<()> {
        let list = cenote_collections::List::from_iter(tx, 0..1000_u64)?;
        let root = tx.alloc(list)?;
        tx.set_named_root("numbers", Some(root))
    });
    filled.expect("written");
    store.close().expect("closed");
    let archive = fixture.dir.path().join("words.cenote");
    let archive = archive.to_str().expect("text");
    with_daemon(&fixture, |socket| {
        let out = run(["export", socket, "words", archive]).exits(0).out;
        assert!(out.contains("exported pool \"words\""), "{out}");
        run(["export", socket, "words", archive]).complains(3, &["there already"]);
        run(["export", socket, "nothing", "-"]).complains(3, &["nothing"]);
        // What cannot be heeded is not passed over in silence.
        run(["export", socket, "words", "-", "--accept-copy"])
            .complains(2, &["socket", "--accept-copy"]);
        run(["clone", socket, "words", "copy", "--key-file", archive])
            .complains(2, &["socket", "key"]);
        let out = run(["import", socket, archive, "-n"]).exits(3);
        assert!(out.err.contains("words"), "{}", out.err);
        let out = run(["import", socket, archive, "--as", "again"]).exits(0).out;
        assert!(
            out.contains("imported pool \"again\"") && out.contains("when it is first opened"),
            "{out}"
        );
        run(["import", socket, archive, "--as", "again"]).complains(3, &["again"]);
        let out = run(["clone", socket, "again", "copy"]).exits(0).out;
        assert!(out.contains("is a copy of \"again\"") && out.contains("opened"), "{out}");
        let out = run(["copy", socket, "again", "logged", "--heap", "logged"]).exits(0).out;
        assert!(out.contains("\"logged\" is a copy of \"again\""), "{out}");
        run(["copy", socket, "again", "logged"]).complains(3, &["\"logged\""]);
        run(["copy", socket, "absent", "more"]).complains(3, &["\"absent\""]);
        run(["clone", socket, "again", "shared", "--reflink"]).complains(3, &["stop the daemon"]);
        let out = run(["randomize", socket, "copy", "--eager"]).exits(0).out;
        assert!(
            out.contains("has new addresses") && out.contains("the daemon has rewritten"),
            "{out}"
        );
        let top = run(["top", socket, "--once", "--json", "--interval", "0.1"]).exits(0).json();
        let pools =
            top["pools"].as_array().expect("a list").iter().map(|pool| pool["pool"].clone());
        let names: Vec<String> = pools.filter_map(|name| name.as_str().map(String::from)).collect();
        assert!(
            ["words", "again", "copy"].iter().all(|name| names.contains(&(*name).into())),
            "{names:?}"
        );
    });
}

#[test]
fn pools_are_listed_made_and_removed_through_a_daemon() {
    let fixture = with_pool();
    with_daemon(&fixture, |socket| {
        assert!(run(["create", socket, "words", "-n"]).exits(3).err.contains("already"));
        run(["create", socket, "more", "-n"]).exits(0);
        let out = run(["create", socket, "more"]).exits(0).out;
        assert!(out.contains("created pool \"more\""), "{out}");
        let listed = run(["ls", socket, "--json"]).exits(0).json_lines();
        let names: Vec<_> = listed.iter().map(|pool| pool["pool"].as_str()).collect();
        assert_eq!(names, [Some("more"), Some("words")]);
        assert!(run(["ls", socket]).exits(0).out.contains("words"));
        run(["rm", socket, "more"]).complains(2, &["--yes"]);
        run(["rm", socket, "nope", "-y"]).complains(3, &["\"nope\"", "words"]);
        run(["rm", socket, "more", "-y"]).exits(0);
        assert_eq!(run(["ls", socket, "--json"]).exits(0).json()["pool"], "words");
        // What reads files says what takes the socket, and what to do.
        let files =
            ["info", "check", "dump", "show", "stats", "verify", "reclaim", "trim", "relocate"];
        for command in files {
            run([command, socket])
                .complains(2, &["socket of a daemon", "ls, create, rm", "stop the daemon"]);
        }
        run(["rm", socket, "--store", "-y"]).complains(2, &["socket of a daemon"]);
    });
}

#[test]
fn a_store_that_a_daemon_keeps_is_copied_by_the_daemon() {
    let fixture = with_pool();
    let target = fixture.dir.path().join("copy");
    let target = target.to_str().expect("text");
    with_daemon(&fixture, |socket| {
        let out = run(["backup", socket, target]).exits(0).out;
        assert!(out.contains("1 pool") && out.contains(target), "{out}");
        run(["backup", socket, target]).complains(3, &["not empty"]);
        run(["backup", fixture.store.to_str().expect("text"), target]).complains(4, &["socket"]);
    });
    run(["check", target]).exits(0);
}

/// A user who may write one pool moves it, and need not be able to open the others.
#[test]
fn a_user_moves_its_own_pool_beside_others() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const OTHER_USER: u32 = 54_321;
    if cenote_sys::process::uid() != 0 {
        return println!("skipped: only root can be another user");
    }
    let fixture = with_pool();
    let open_to_all = || std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(fixture.dir.path(), open_to_all()).expect("changed");
    let archive = fixture.dir.path().join("words.cenote");
    let archive = archive.to_str().expect("text");
    with_daemon(&fixture, |socket| {
        run(["export", socket, "words", archive]).exits(0);
        std::fs::set_permissions(archive, open_to_all()).expect("changed");
        let as_limited_user = |arguments: &[&str]| {
            let done = crate::common::cenote()
                .uid(OTHER_USER)
                .gid(OTHER_USER)
                .args(arguments)
                .output()
                .expect("runs");
            assert!(
                done.status.success(),
                "{arguments:?}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        as_limited_user(&["import", socket, archive, "--as", "own"]);
        // Once before, so that there is something to be rewritten in the other, too.
        let out = as_limited_user(&["randomize", socket, "own", "--eager"]);
        assert!(
            out.contains("has new addresses") && out.contains("the daemon has rewritten"),
            "{out}"
        );
    });
}

/// Not a test of its own: a client with a pool.
#[test]
fn holds_other() {
    let Some((_, socket)) = child::task() else { return };
    let store = cenote::Store::connect(socket).expect("connected");
    let _other = store.pool_with("other", cenote::Access::ReadWrite).expect("opened");
    child::say("held");
    child::wait_to_go_on();
}

/// The reason is the pool that is in use, and the process that has it.
#[test]
fn what_keeps_a_pool_from_being_moved_or_removed_is_said() {
    let fixture = with_pool();
    fixture.run("create", &["other", "--mode", "direct"]).exits(0);
    with_daemon(&fixture, |socket| {
        let socket_path = std::path::Path::new(socket);
        let mut holder =
            Talking::start(&mut child::with_task("daemon::holds_other", "hold", socket_path));
        assert_eq!(holder.hear().as_deref(), Some("held"));
        let us = format!("process {}", holder.pid());
        for (command, pool) in [("randomize", "words"), ("randomize", "other"), ("rm", "other")] {
            let confirmed: &[&str] = if command == "rm" { &["-y"] } else { &[] };
            let ran = run([&[command, socket, pool], confirmed].concat());
            let ran = ran.complains(4, &["pool \"other\" is in use", &us]);
            assert!(!ran.err.contains("words"), "{command} {pool}: {}", ran.err);
        }
        // It is waited for until that is recovered.
        holder.kill();
        run(["rm", socket, "other", "-y"]).exits(0);
        run(["randomize", socket, "words"]).exits(0);
        let ran = run(["rm", socket, "--store", "-y"]).complains(2, &["stop the daemon"]);
        assert!(!ran.err.contains("rm POOL"), "{}", ran.err);
    });
}

/// A window without room is not a disk without space.
#[test]
fn a_full_window_is_no_full_disk_through_a_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let path = store.to_str().expect("text");
    run(["format", path, "--window-size", "64M"]).exits(0);
    run(["create", path, "words", "--size", "40M", "--mode", "direct"]).exits(0);
    let fixture = Fixture { dir, store };
    with_daemon(&fixture, |socket| {
        for command in
            [&["randomize", socket, "words"][..], &["create", socket, "b", "--size", "40M"]]
        {
            let ran = run(command).complains(3, &["window of 67108864 bytes"]);
            assert!(!ran.err.contains("no space"), "{}", ran.err);
        }
    });
}

/// Of two stores the copy is the one whose disk is full.
#[test]
fn a_backup_to_a_full_disk_names_that_disk_through_a_daemon() {
    let fixture = with_pool();
    let small = fixture.dir.path().join("small");
    std::fs::create_dir(&small).expect("made");
    let Some(_disk) = crate::bad_stores::Mounted::new(&small, "size=1m") else { return };
    let target = small.join("copy");
    let target = target.to_str().expect("text");
    with_daemon(&fixture, |socket| {
        let said = [target, "no space", "on another file system"];
        let ran = run(["backup", socket, target]).complains(3, &said);
        assert!(!ran.err.contains("daemon's store"), "{}", ran.err);
    });
    assert_eq!(std::fs::read_dir(&small).expect("readable").count(), 0);
}
