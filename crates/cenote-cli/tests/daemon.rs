//! Commands that ask a daemon: one in this process, which nobody has to start.

mod common;

use cenoted::{Config, Server};
use common::{Fixture, run, with_pool};
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
        let here = clients.iter().find(|client| client["pid"] == std::process::id()).expect("this process");
        assert_eq!((&here["state"], &here["uid"]), (&"attached".into(), &cenote_sys::process::uid().into()));
        assert_eq!(object["pools"][0]["pool"], "words");
        // Three questions of its own in an interval, at least.
        assert!(object["messages_per_s"].as_f64().is_some_and(|rate| rate > 1.0), "{object}");
        let text = run(["top", socket, "--once", "--interval", "0.1"]).exits(0).out;
        for part in ["clients 2", "(this command)", "words", "attached", "recoveries 0 (+0)"] {
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
