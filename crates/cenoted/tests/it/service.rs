//! The daemon as a service: its command line, what a service manager passes and hears, what it
//! logs, and how it goes on when something of its own fails.

use crate::common::{Actor, Daemon, add, count, make_counter};
use crate::hostile::{Raw, refused};
use cenote::Store;
use cenote_proto::{Listener, PoolSpec, Refusal, Reply, Request};
use rustix::process::{Resource, Rlimit};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A socket that plays the service manager's.
fn manager(daemon: &Daemon) -> UnixDatagram {
    let socket = UnixDatagram::bind(daemon.path("notify")).expect("bind");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    socket
}

fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 2048];
    let len = loop {
        match manager.recv(&mut buffer) {
            // The kernel ends a wait with a time limit so when the machine was suspended.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.expect("a message within 30 s"),
        }
    };
    String::from_utf8(buffer[..len].to_vec()).expect("text")
}

/// A shell that gets a socket as its standard input, and becomes the daemon with it as descriptor
/// 3, as a service manager passes it.
fn with_passed(daemon: &Daemon, socket: impl AsFd) -> Command {
    let (command, mut shell) = (daemon.command(), Command::new("sh"));
    shell
        .args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(socket.as_fd().try_clone_to_owned().expect("another descriptor"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    shell
}

#[test]
fn a_service_manager_passes_the_socket_and_hears_how_it_goes() {
    let mut daemon = Daemon::prepare(&["--log", "debug"]);
    let (manager, listener) = (manager(&daemon), Listener::bind(&daemon.socket()).expect("bind"));
    // A client that connects before the daemon runs is served when it does.
    let early = std::thread::scope(|scope| {
        let socket = daemon.socket();
        let early = scope.spawn(move || Store::connect(socket).expect("connect"));
        let mut command = with_passed(&daemon, &listener);
        command.env("NOTIFY_SOCKET", daemon.path("notify")).env("WATCHDOG_USEC", "200000");
        daemon.run(&mut command);
        early.join().expect("connected")
    });
    let ready = heard(&manager);
    assert!(ready.starts_with("READY=1\nSTATUS=serving "), "{ready:?}");
    let pool = early.pool("numbers").expect("pool");
    make_counter(&pool);
    assert_eq!(add(&pool), 1);
    // The heartbeat comes again and again, and says what is there.
    let beats: Vec<String> = (0..3).map(|_| heard(&manager)).collect();
    assert!(beats.iter().all(|beat| beat.starts_with("WATCHDOG=1\nSTATUS=serving ")), "{beats:?}");
    assert!(
        std::iter::from_fn(|| Some(heard(&manager)))
            .take(100)
            .any(|said| said.contains("of 1 pools"))
    );
    drop((pool, early));
    daemon.signal(rustix::process::Signal::TERM);
    let stopping =
        std::iter::from_fn(|| Some(heard(&manager))).find(|said| !said.starts_with("WATCHDOG"));
    assert_eq!(stopping.as_deref(), Some("STOPPING=1\nSTATUS=told to end"));
    let (status, said) = daemon.wait_for_end();
    assert_eq!(status, Some(0), "{said}");
    assert!(daemon.socket().exists(), "the socket is the manager's");
    // That it serves was said on standard output, as `run` has seen.
    for expected in ["connected pid=", "granted pool \"numbers\"", "the store is closed"] {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
}

/// A daemon that is stuck sends no heartbeat: it is stopped by a signal here, threads and all.
#[test]
fn a_daemon_that_does_not_run_sends_no_heartbeat() {
    let mut daemon = Daemon::prepare(&[]);
    let manager = manager(&daemon);
    let mut command = daemon.command();
    command.arg("--socket").arg(daemon.socket());
    command.env("NOTIFY_SOCKET", daemon.path("notify")).env("WATCHDOG_USEC", "100000");
    daemon.run(&mut command);
    assert!(heard(&manager).starts_with("READY=1"));
    assert!(heard(&manager).starts_with("WATCHDOG=1"));
    daemon.signal(rustix::process::Signal::STOP);
    // What was sent before that, and then nothing.
    manager.set_read_timeout(Some(Duration::from_millis(700))).expect("timeout");
    let mut buffer = [0; 2048];
    let said = (0..20).take_while(|_| manager.recv(&mut buffer).is_ok()).count();
    assert!(said < 5, "{said} messages of a process that is stopped");
    manager.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    daemon.signal(rustix::process::Signal::CONT);
    assert!(heard(&manager).starts_with("WATCHDOG=1"));
    daemon.stop();
}

#[test]
fn what_is_passed_and_is_no_such_socket_is_refused_with_a_reason() {
    let mut daemon = Daemon::prepare(&[]);
    let stream = std::os::unix::net::UnixListener::bind(daemon.path("stream")).expect("bind");
    let ended = |mut command: Command| {
        let output = command.stderr(Stdio::piped()).output().expect("run");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = ended(with_passed(&daemon, &stream));
    assert!(status == Some(1) && said.contains("sequential packets"), "{said}");
    let (status, said) = ended(daemon.command());
    assert!(status == Some(2) && said.contains("--socket"), "{said}");
    let mut command = daemon.command();
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "x");
    let (status, said) = ended(command);
    assert!(status == Some(1) && said.contains("LISTEN_PID"), "{said}");
    // Meant for another process: not taken.
    let mut command = daemon.command();
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1").arg("--socket").arg(daemon.socket());
    daemon.run(&mut command);
    drop(daemon.connect());
    // A second one: the store is taken.
    let mut command = daemon.command();
    command.arg("--socket").arg(daemon.path("other"));
    let (status, said) = ended(command);
    assert!(status == Some(1) && said.contains("in use"), "{said}");
    daemon.stop();
}

#[test]
fn the_command_line_explains_itself_and_says_what_is_wrong() {
    let run = |arguments: &[&str], log: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenoted"));
        let output = command.args(arguments).env("CENOTED_LOG", log).output().expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, out, _) = run(&["--help"], "");
    assert_eq!(status, Some(0));
    for option in [
        "--store",
        "--socket",
        "--metrics",
        "--log",
        "--clients-per-user",
        "--client-bytes",
        "--client-puddles",
    ] {
        assert!(out.contains(option), "{option} is not in {out}");
    }
    assert_eq!(
        run(&["--version"], ""),
        (Some(0), format!("cenoted {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
    for (arguments, log, part) in [
        (&["--socket", "/x"][..], "info", "--store"),
        (&["--store", "/x"], "info", "--socket"),
        (&["--store", "/x", "--socket", ""], "info", "--socket"),
        (&["--store", "/x", "--clients", "many"], "info", "--clients"),
        (&["--store", "/x", "--loud"], "info", "--loud"),
        (&["--store", "/x", "--metrics", "10.0.0.1:80"], "info", "loopback"),
        (&["--store", "/x", "--socket", "/y"], "loud", "CENOTED_LOG"),
    ] {
        let (status, _, err) = run(arguments, log);
        assert!(status == Some(2) && err.contains(part), "{arguments:?}: {status:?} {err}");
    }
}

/// Has the daemon write no further than here into any file, as a quota would.
fn limit_files(daemon: &Daemon, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    rustix::process::prlimit(Some(daemon.pid()), Resource::Fsize, limit).expect("limit");
}

/// A batch that cannot even be taken back leaves the store poisoned: only reading the medium again
/// tells what is on it.
#[test]
fn a_daemon_whose_store_is_poisoned_ends_and_the_next_one_recovers() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let kept = store.pool("kept").expect("pool");
    make_counter(&kept);
    {
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    // The child is to have the numbers.
    drop((kept, store));
    let store = daemon.connect();
    let kept = store.pool("kept").expect("pool");
    assert_eq!(add(&kept), 1);
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    limit_files(&daemon, Some(1));
    child.kill();
    let (status, _) = daemon.wait_for_end();
    assert_eq!(status, Some(1), "for its manager to start another one");
    // Its clients go on meanwhile, and with the next one.
    assert_eq!(add(&kept), 2);
    daemon.restart();
    let pool = store.pool("numbers").expect("recovered when the next one began");
    assert_eq!((count(&pool), count(&kept)), (1, 2));
    assert_eq!(add(&pool), 2);
}

/// The daemon may not make files longer for a while: the catalog cannot say that a client has
/// ended.
#[test]
fn an_end_that_fails_is_tried_again_until_it_is_done() {
    let daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    let store = daemon.connect();
    let other = store.pool("others").expect("pool");
    make_counter(&other);
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    // Batches of the catalog can be taken back, and not added.
    let catalog = std::fs::metadata(daemon.store().join("catalog.0")).expect("catalog").len();
    limit_files(&daemon, Some(catalog));
    child.kill();
    daemon.wait_until("it is tried again", |stat| stat.ends_failed >= 3);
    let stat = daemon.stat();
    assert_eq!((stat.recoveries, stat.logs_set_aside), (0, 0));
    // Its pool is its own until then, and others go on.
    let busy = store.pool("numbers");
    assert!(
        matches!(busy, Err(cenote::Error::Store(cenote_store::StoreError::PoolBusy { .. }))),
        "{busy:?}"
    );
    assert_eq!(add(&other), 1);
    let states: Vec<_> = cenote::DaemonWatcher::connect(daemon.socket())
        .expect("connect")
        .clients()
        .expect("list")
        .into_iter()
        .map(|client| client.state)
        .collect();
    assert!(states.contains(&cenote::ClientState::Failed), "{states:?}");
    limit_files(&daemon, None);
    daemon.wait_until("it is done", |stat| stat.recoveries == 1);
    // The logs were replayed by the first try, and are found to hold nothing by the others.
    let pool = store.pool("numbers").expect("pool");
    assert_eq!((count(&pool), add(&pool)), (1, 2));
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
}

#[test]
fn a_pool_is_created_once_however_often_it_is_asked_for() {
    let mut daemon = Daemon::start(&[]);
    let spec = PoolSpec {
        mode: cenote::PoolMode::Direct,
        heap: cenote::HeapKind::Traced,
        puddle_size: 2 << 20,
        size_max: u64::MAX,
        permissions: 0o600,
    };
    let request = |token: u8| {
        let token = cenote_layout::id::Uuid([token; 16]);
        Request::CreatePool { name: "numbers".into(), spec, token }
    };
    let mut raw = Raw::connect(&daemon);
    let Reply::Created(made) = raw.ask(&request(1)).0 else { panic!("not made") };
    assert_eq!(raw.ask(&request(1)).0, Reply::Created(made));
    // The answer is lost with the daemon, which had made the pool; the client goes on with its
    // session, and asks again.
    let client = raw.client;
    daemon.kill();
    daemon.restart();
    let mut raw = Raw::hello(&daemon, Some(client)).expect("resumed");
    assert_eq!(raw.ask(&request(1)).0, Reply::Created(made));
    // Another request, or another client's, is not that one.
    assert_eq!(refused(&raw.ask(&request(2)).0), &Refusal::PoolExists);
    let mut other = Raw::connect(&daemon);
    assert_eq!(refused(&other.ask(&request(1)).0), &Refusal::PoolExists);
    assert_eq!(other.ask(&Request::Goodbye).0, Reply::Done);
    let store = daemon.connect();
    assert_eq!(store.pools().len(), 1);
    store.close().expect("closed");
    // It leaves nothing behind but the pool.
    assert_eq!(raw.ask(&Request::Goodbye).0, Reply::Done);
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    assert!(store.report().clean && store.pools().len() == 1, "{:?}", store.report());
}
