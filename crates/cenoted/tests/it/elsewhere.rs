//! A client whose daemon has ended runs on in one container, and the store is opened in another
//! one, which does not see the client's process.

use crate::common::{Actor, Daemon, count, make_counter, say};
use cenote::Store;
use cenote_medium::planted::{Bug, plant};
use cenote_store::OpenError;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Namespaces, each with its way of hiding a process.
const NAMESPACES: [&[&str]; 2] =
    [&["--pid", "--fork", "--mount-proc"], &["--time", "--boottime=1000", "--fork"]];

/// A child, elsewhere: opens the store, and says how that went.
pub(crate) fn open(socket: &Path) {
    let _planted = std::env::var_os("CENOTED_PLANTED").map(|_| plant(Bug::ClientsSeenAlone));
    match Store::open(socket.with_file_name("store")) {
        Ok(store) => say(&format!("opened {}", store.pools().len())),
        Err(cenote::Error::Open(OpenError::Clients { .. })) => say("refused"),
        Err(error) => say(&error.to_string()),
    }
}

/// `unshare` with these options; as root of a namespace of users where this is another user.
fn unshare(options: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(options);
    command
}

fn can(options: &[&str]) -> bool {
    let ran = unshare(options).arg("true").stderr(Stdio::null()).status();
    let can = ran.is_ok_and(|status| status.success());
    if !can {
        println!("skipped: no namespace here by unshare {}", options.join(" "));
    }
    can
}

fn role(namespace: &[&str], role: &str, daemon: &Daemon, planted: bool) -> String {
    let mut command = unshare(namespace);
    command.arg(std::env::current_exe().expect("this program"));
    if planted {
        command.env("CENOTED_PLANTED", "1");
    }
    let mut actor = Actor::run(&mut command, role, daemon);
    let said = actor.hear();
    assert!(actor.ends());
    said
}

/// A daemon that was killed while a client counts.
fn orphan() -> (Daemon, Actor) {
    let mut daemon = Daemon::start(&[]);
    make_counter(&daemon.connect().pool("numbers").expect("pool"));
    let mut client = Actor::start("counter", &daemon);
    assert_eq!(client.hear(), "1");
    daemon.kill();
    (daemon, client)
}

fn second_daemon(namespace: &[&str], daemon: &Daemon) -> Output {
    let mut command = unshare(namespace);
    let cenoted = daemon.command();
    command.arg(cenoted.get_program()).args(cenoted.get_args().collect::<Vec<&OsStr>>());
    command.arg("--socket").arg(daemon.path("second"));
    command.output().expect("run unshare")
}

#[test]
fn a_client_that_is_not_seen_keeps_openers_and_daemons_out() {
    for namespace in NAMESPACES {
        if !can(namespace) {
            continue;
        }
        let (mut daemon, client) = orphan();
        assert_eq!(role(namespace, "open-elsewhere", &daemon, false), "refused", "{namespace:?}");
        let second = second_daemon(namespace, &daemon);
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(
            !second.status.success() && said.contains("in use by clients"),
            "{namespace:?}: {said}"
        );
        // Its own daemon takes it over; without the client all is free.
        daemon.restart();
        client.kill();
        daemon.wait_until("the client is recovered", |stat| stat.recoveries == 1);
        assert!(count(&daemon.connect().pool("numbers").expect("pool")) > 0);
        daemon.stop();
        assert_eq!(role(namespace, "open-elsewhere", &daemon, false), "opened 1", "{namespace:?}");
    }
}

#[test]
fn an_opener_that_looks_for_processes_alone_is_found() {
    for namespace in NAMESPACES {
        if !can(namespace) {
            continue;
        }
        let (daemon, client) = orphan();
        assert_eq!(role(namespace, "open-elsewhere", &daemon, true), "opened 1", "{namespace:?}");
        client.kill();
        drop(daemon);
    }
}

#[test]
fn a_client_that_its_daemon_cannot_see_is_told_why() {
    const APART: &[&str] = &["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !can(APART) {
        return;
    }
    let mut daemon = Daemon::start(&[]);
    daemon.stop();
    let socket = daemon.path("apart");
    let mut command = unshare(APART);
    let cenoted = daemon.command();
    command.arg(cenoted.get_program()).args(cenoted.get_args().collect::<Vec<&OsStr>>());
    let mut apart = command.arg("--socket").arg(&socket).spawn().expect("run unshare");
    let until = Instant::now() + Duration::from_secs(20);
    while !socket.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = Store::connect(&socket);
    let _ = apart.kill();
    let _ = apart.wait();
    let said = refused.expect_err("it is not seen").to_string();
    assert!(said.contains("process namespace") && said.contains("run the daemon where"), "{said}");
}
