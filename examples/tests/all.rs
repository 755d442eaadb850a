//! Runs the programs of this folder as their comments say.

mod tutorial;

use cenote::Store;
use cenote_testkit::child::again;
use cenote_testkit::directories::directory;
use cenote_testkit::random::mix;
use cenote_testkit::time::until;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A program of this folder, which `cargo test` has built beside this one.
fn program(name: &str, arguments: &[&str], scratch: &Path) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(name);
    assert!(path.exists(), "{} is not there: run `cargo test -p cenote-examples`", path.display());
    let mut command = Command::new(path);
    command.args(arguments).env("XDG_STATE_HOME", scratch);
    command
}

/// What a program prints, which must succeed.
fn said(name: &str, arguments: &[&str], scratch: &Path) -> String {
    let output = program(name, arguments, scratch).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The error of a program, which must fail.
fn refused(name: &str, arguments: &[&str], scratch: &Path) -> String {
    let output: Output = program(name, arguments, scratch).output().unwrap();
    assert!(!output.status.success(), "{name} {arguments:?} succeeded");
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The pool of a store is sound, and every block is reached from a root.
fn leaks_nothing(store: &str, pool: &str) {
    let report = Store::open(store).unwrap().pool(pool).unwrap().check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.leaked_blocks, 0, "{report:?}");
}

#[test]
fn contacts_are_found_by_name_and_by_tag_until_they_are_removed() {
    let scratch = directory();
    let store = scratch.path().join("store").display().to_string();
    let contacts = |arguments: &[&str]| {
        said("contacts", &[&[store.as_str()], arguments].concat(), scratch.path())
    };
    contacts(&["add", "Ada Lovelace", "36000", "friend", "london"]);
    contacts(&["add", "Grace Hopper", "4711", "friend"]);
    contacts(&["add", "Ada Lovelace", "36001", "friend"]);
    let ada = "Ada Lovelace: 36001 (friend)\n";
    assert_eq!(contacts(&["find", "Ad"]), ada);
    assert_eq!(contacts(&["tag", "friend"]), format!("{ada}Grace Hopper: 4711 (friend)\n"));
    assert_eq!(contacts(&["tag", "london"]), "");
    contacts(&["rm", "Ada Lovelace"]);
    assert_eq!(contacts(&["find", ""]), "Grace Hopper: 4711 (friend)\n");
    let error = refused("contacts", &[&store, "rm", "Ada Lovelace"], scratch.path());
    assert_eq!(error, "error: no contact \"Ada Lovelace\"\n");
    leaks_nothing(&store, "contacts");
}

#[test]
fn the_shortest_way_through_a_graph_is_found_after_a_restart() {
    let scratch = directory();
    let store = scratch.path().join("store").display().to_string();
    let graph = |arguments: &[&str]| {
        said("graph", &[&[store.as_str()], arguments].concat(), scratch.path())
    };
    for (from, to, length) in
        [("Paris", "Lyon", "466"), ("Lyon", "Nice", "471"), ("Paris", "Nice", "1000")]
    {
        graph(&["road", from, to, length]);
    }
    graph(&["road", "Oslo", "Bergen", "463"]);
    assert_eq!(graph(&["way", "Nice", "Paris"]), "Nice - Lyon - Paris: 937 km\n");
    assert_eq!(graph(&["way", "Paris", "Oslo"]), "no way from Paris to Oslo\n");
    let error = refused("graph", &[&store, "way", "Paris", "Atlantis"], scratch.path());
    assert_eq!(error, "error: no town \"Atlantis\"\n");
    leaks_nothing(&store, "towns");
}

#[test]
fn jobs_are_done_once_however_often_their_worker_is_killed() {
    const JOBS: u64 = 20_000;
    let scratch = directory();
    let store = scratch.path().join("store").display().to_string();
    said("jobs", &[&store, "add", &JOBS.to_string()], scratch.path());
    let mut killed = 0;
    for round in 0..12 {
        let mut worker = program("jobs", &[&store, "work"], scratch.path()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + mix(round) % 30));
        worker.kill().unwrap();
        killed += u32::from(worker.wait().unwrap().code().is_none());
    }
    said("jobs", &[&store, "work"], scratch.path());
    let sum: u64 = (1..=JOBS).map(collatz).sum();
    let shown = said("jobs", &[&store, "show"], scratch.path());
    assert_eq!(shown, format!("0 waiting, 0 begun, {JOBS} done, sum {sum}\n"));
    assert!(killed > 0, "no worker was killed while it worked");
    leaks_nothing(&store, "jobs");
}

/// Steps of the sequence from `number` to 1.
fn collatz(number: u64) -> u64 {
    let next = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
    if number == 1 { 0 } else { 1 + collatz(next) }
}

#[test]
fn a_cache_keeps_what_was_used_last() {
    let scratch = directory();
    let store = scratch.path().join("store").display().to_string();
    let lru =
        |arguments: &[&str]| said("lru", &[&[store.as_str()], arguments].concat(), scratch.path());
    for key in 0..100 {
        lru(&["put", &format!("key {key}"), &format!("value {key}")]);
    }
    assert_eq!(lru(&["get", "key 0"]), "value 0\n");
    lru(&["put", "one more", "value"]);
    let error = refused("lru", &[&store, "get", "key 1"], scratch.path());
    assert_eq!(error, "error: \"key 1\" is not in the cache\n");
    let listed = lru(&["ls"]);
    assert!(listed.starts_with("one more\nkey 0\nkey 99\n"), "{listed}");
    assert_eq!(listed.lines().count(), 100);
    leaks_nothing(&store, "cache");
}

/// A daemon in a process of its own, for the child of the next test.
const DAEMON: &str = "CENOTE_EXAMPLES_DAEMON";

#[test]
fn daemon() {
    let Some(store) = std::env::var_os(DAEMON) else { return };
    cenoted::prepare_process();
    let config = cenoted::Config::new(&store, Path::new(&store).with_file_name("socket"));
    let server = cenoted::Server::start(&config, None).unwrap();
    let (never, _kept) = std::os::unix::net::UnixStream::pair().unwrap();
    server.run(std::os::fd::AsFd::as_fd(&never)).unwrap();
}

/// Ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_programs_share_a_pool_and_one_is_killed() {
    let scratch = directory();
    let socket = scratch.path().join("socket");
    let mut daemon = again("daemon");
    daemon.env(DAEMON, scratch.path().join("store")).env("XDG_STATE_HOME", scratch.path());
    let _daemon = Ended(daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until("the daemon's socket", 20, || socket.exists().then_some(()));
    let socket = socket.display().to_string();
    let receive = |count: &str| {
        let mut receiver = program("two_processes", &[&socket, "receive", count], scratch.path());
        Ended(receiver.stdout(Stdio::piped()).spawn().unwrap())
    };
    // One that waits, and is killed.
    drop(receive("1"));
    let mut receiver = receive("2");
    said("two_processes", &[&socket, "send", "hello"], scratch.path());
    said("two_processes", &[&socket, "send", "and good-bye"], scratch.path());
    let mut received = String::new();
    std::io::Read::read_to_string(receiver.0.stdout.as_mut().unwrap(), &mut received).unwrap();
    assert_eq!(received, "hello\nand good-bye\n");
    assert!(receiver.0.wait().unwrap().success());
}

#[test]
fn passwords_are_read_with_their_key_and_in_no_file() {
    let scratch = directory();
    let store = scratch.path().join("store").display().to_string();
    let key = |name: &str, seed: u64| {
        let path = scratch.path().join(name);
        let bytes: Vec<u8> = (0..4).flat_map(|at| mix(seed + at).to_le_bytes()).collect();
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (key("right", 1), key("wrong", 9));
    let secret = "correct horse battery";
    said("protected", &[&store, &right, "set", "mail", secret], scratch.path());
    assert_eq!(said("protected", &[&store, &right, "get", "mail"], scratch.path()).trim(), secret);
    let error = refused("protected", &[&store, &wrong, "get", "mail"], scratch.path());
    assert!(error.contains("key"), "{error}");
    for (file, bytes) in cenote_testkit::directories::contents(Path::new(&store)) {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{} has the password", file.display());
    }
}
