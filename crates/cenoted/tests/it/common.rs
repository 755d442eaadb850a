//! A daemon in a directory of its own, and children that are this test program again.

use cenote::{Persist, Pool, PoolOptions, Ptr, Reader, Store};
use cenote_testkit::time::until;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What tests keep in pools.
#[derive(Persist)]
pub(crate) struct Counter {
    pub(crate) count: u64,
    pub(crate) twice: u64,
    pub(crate) list: Option<Ptr<Item>>,
}

#[derive(Persist)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) next: Option<Ptr<Item>>,
}

/// Sends a signal. After SIGSTOP it waits until every thread has stopped: one that runs on another
/// processor goes on for a moment.
fn send(pid: rustix::process::Pid, signal: rustix::process::Signal) {
    rustix::process::kill_process(pid, signal).expect("signal");
    if signal != rustix::process::Signal::STOP {
        return;
    }
    let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
    let is_stopped = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // Behind the name, which ends with the last bracket.
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    until("it stops", 60, || {
        std::fs::read_dir(&threads).expect("it runs").flatten().all(is_stopped).then_some(())
    });
}

/// A store, and the daemon that keeps it while there is one.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    child: Option<Child>,
    options: Vec<String>,
}

impl Daemon {
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut daemon = Self::prepare(options);
        daemon.restart();
        daemon
    }

    /// A store without a daemon.
    pub(crate) fn prepare(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        // Other users come by here to the socket.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
        let options = options.iter().map(ToString::to_string).collect();
        let daemon = Self { dir, child: None, options };
        // By this process, which gives stores windows that do not lie on each other.
        Store::format(daemon.store(), &cenote::FormatOptions::default()).expect("format");
        daemon
    }

    /// A path in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with its options, without a socket.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenoted"));
        command.arg("--store").arg(self.store()).args(&self.options).stdout(Stdio::piped());
        command
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        let mut command = self.command();
        command.arg("--socket").arg(self.socket());
        self.run(&mut command);
    }

    /// Starts it by this command.
    pub(crate) fn run(&mut self, command: &mut Command) {
        let mut child = command.spawn().expect("start cenoted");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("read");
        assert!(line.starts_with("cenoted: serving"), "{line:?}");
        self.child = Some(child);
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(self.child.as_ref().expect("it runs"))
    }

    /// SIGSTOP, SIGCONT.
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        send(self.pid(), signal);
    }

    /// Waits until it ends by itself; what it said on standard error, where that was asked for.
    pub(crate) fn wait_for_end(&mut self) -> (Option<i32>, String) {
        until("it ends", 60, || (!self.is_running()).then_some(()));
        let ended = self.child.take().expect("it was started").wait_with_output().expect("wait");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// SIGTERM; it must end well.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
        assert!(child.wait().expect("wait").success());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("wait").is_none())
    }

    pub(crate) fn stat(&self) -> cenote::DaemonStat {
        cenote::daemon_stat(self.socket()).expect("stat")
    }

    pub(crate) fn connect(&self) -> Store {
        Store::connect(self.socket()).expect("connect")
    }

    /// Waits until the daemon says so.
    pub(crate) fn wait_until(&self, what: &str, is: impl Fn(&cenote::DaemonStat) -> bool) {
        until(what, 120, || is(&self.stat()).then_some(()));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A child of this program that plays a role and talks through its pipes.
pub(crate) struct Actor {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Actor {
    pub(crate) fn start(role: &str, daemon: &Daemon) -> Self {
        Self::start_program(&std::env::current_exe().expect("this program"), role, daemon)
    }

    /// The same by a copy of this program.
    pub(crate) fn start_program(program: &std::path::Path, role: &str, daemon: &Daemon) -> Self {
        Self::run(&mut Command::new(program), role, daemon)
    }

    /// The same with more in its environment.
    pub(crate) fn start_with(role: &str, daemon: &Daemon, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        Self::run(command.envs(environment.iter().copied()), role, daemon)
    }

    pub(crate) fn run(command: &mut Command, role: &str, daemon: &Daemon) -> Self {
        let mut child = command
            .args(["common::a_child_plays_its_role", "--exact", "--nocapture", "--quiet"])
            .env("CENOTED_ROLE", role)
            .env("CENOTED_SOCKET", daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a child");
        let (input, output) =
            (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Self { child, input, output: BufReader::new(output) }
    }

    /// What the child says next.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("read") > 0, "the child has ended");
            // The test harness of the child talks too.
            if let Some(said) = line.trim_end().strip_prefix("> ") {
                return said.to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("write");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        send(rustix::process::Pid::from_child(&self.child), signal);
    }

    /// Hears it in the background from here on.
    pub(crate) fn in_background(self) -> Heard {
        let Self { child, input, output } = self;
        let last = Arc::new(AtomicU64::new(0));
        let hears = Arc::clone(&last);
        let thread = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    hears.store(said.parse().expect("a number"), Ordering::SeqCst);
                }
            }
        });
        Heard { child, last, thread, _input: input }
    }

    pub(crate) fn ends(mut self) -> bool {
        drop(self.input);
        self.child.wait().expect("wait").success()
    }
}

/// A child that says numbers.
pub(crate) struct Heard {
    child: Child,
    last: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
    _input: ChildStdin,
}

impl Heard {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        send(rustix::process::Pid::from_child(&self.child), signal);
    }

    /// The last number that it said.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// How it has ended by itself; `None`: it runs.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("wait")
    }

    /// Kills it, if it has not ended by itself.
    pub(crate) fn stop(mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("wait");
    }

    /// Kills it; the last number that it said.
    pub(crate) fn kill(mut self) -> u64 {
        self.child.kill().expect("kill");
        let ended = self.child.wait().expect("wait");
        // Killed, and not ended by itself before.
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&ended),
            Some(9),
            "the child failed"
        );
        self.thread.join().expect("heard");
        self.last.load(Ordering::SeqCst)
    }
}

pub(crate) fn say(line: &str) {
    println!("> {line}");
    std::io::stdout().flush().expect("flush");
}

pub(crate) fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("read");
    line.trim_end().to_owned()
}

/// Makes the counter that [`add`] counts in.
pub(crate) fn make_counter(pool: &Pool) {
    pool.write(|tx| -> cenote::Result<()> {
        let counter = tx.alloc(Counter { count: 0, twice: 0, list: None })?;
        tx.set_root(counter)
    })
    .expect("make a counter");
}

/// Counts one up, and adds an item.
pub(crate) fn add(pool: &Pool) -> u64 {
    pool.write(|tx| -> cenote::Result<u64> {
        let at = tx.root::<Counter>()?.expect("a counter");
        let (number, next) = (tx.get(at)?.count + 1, tx.get(at)?.list);
        let item = tx.alloc(Item { number, next })?;
        let counter = tx.get_mut(at)?;
        counter.count = number;
        counter.twice = 2 * number;
        counter.list = Some(item);
        Ok(number)
    })
    .expect("count")
}

/// What it stands at; checks that nothing is half done.
pub(crate) fn count(pool: &Pool) -> u64 {
    let view = pool.read().expect("read");
    let at = view.root::<Counter>().expect("root").expect("a counter");
    let counter = view.get(at).expect("counter");
    assert_eq!(counter.twice, 2 * counter.count, "half of a transaction is there");
    let (mut items, mut next) = (0, counter.list);
    while let Some(item) = next {
        let item = view.get(item).expect("item");
        assert_eq!(item.number, counter.count - items, "the list does not fit the counter");
        items += 1;
        next = item.next;
    }
    assert_eq!(items, counter.count);
    counter.count
}

/// Not a test by itself: in a child it plays the role that the environment names, and fails with
/// it.
#[test]
fn a_child_plays_its_role() {
    let Ok(role) = std::env::var("CENOTED_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("CENOTED_SOCKET").expect("socket"));
    match role.as_str() {
        "holder" => crate::ends::hold(&socket),
        "burdened" => crate::ends::hold_much(&socket),
        "counter" => crate::ends::count_on(&socket),
        "reader" => crate::clients::read_on(&socket),
        "sharer" => crate::shared::obey(&socket),
        "share-counter" => crate::shared::count_on(&socket),
        "logged" => crate::logged::count_on(&socket),
        "guarded" => crate::guarded::obey(&socket),
        "circler" => crate::circles::obey(&socket),
        "locker" => crate::shared::lock_and_stay(&socket),
        "object" => crate::objects::obey(&socket),
        "psyncer" => crate::shadowed::obey(&socket),
        "ordinary" => crate::ordinary::obey(&socket),
        "importer" => crate::imports::import_on(&socket),
        "unmapper" => crate::hostile::unmap(&socket),
        "other-layout" => crate::types::have_another_layout(&socket),
        "mover" => crate::shared::move_between(&socket),
        "open-elsewhere" => crate::elsewhere::open(&socket),
        "count-in-two" => crate::backups::count_in_two(&socket),
        "count-in-two-later" => crate::backups::count_in_two_later(&socket),
        "count-and-psync" => crate::backups::count_and_psync(&socket),
        "copy-client" => crate::copies::obey(&socket),
        "copy-daemon" => crate::copies::keep(&socket),
        "backup-asker" => crate::backups::ask(&socket),
        "loser" => crate::lost::obey(&socket),
        "cut-client" => crate::cut::obey(&socket),
        "looker" => crate::meddling::look(&socket),
        "second-image" => crate::images::second(&socket),
        "count-and-exec" => crate::images::count_and_exec(&socket),
        role if role.starts_with("first-image ") => {
            crate::images::first(&socket, role.trim_start_matches("first-image "));
        }
        other => panic!("no role {other}"),
    }
}

/// A pool of that name with a list of so many items.
pub(crate) fn make(store: &Store, name: &str, items: u64, options: &PoolOptions) {
    let pool = store.create_pool(name, options).expect("create");
    make_counter(&pool);
    for _ in 0..items {
        add(&pool);
    }
}
