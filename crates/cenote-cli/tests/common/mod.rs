//! Runs the command as a user would.
#![allow(dead_code, reason = "every test program uses its own part")]

use cenote_testkit::directories;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;

/// The program that recovers, beside the command. Cargo builds it with these tests only if it tests
/// the whole workspace; otherwise it is built here. It is asked for as its own test needs it: Cargo
/// resolves the features of a test then, and what these tests use is not built again with others.
/// So the program is never older than its source.
pub(crate) fn recover() -> PathBuf {
    static BUILT: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_cenote")).with_file_name("cenote-recover");
    let directory = program.parent().expect("a directory");
    BUILT.call_once(|| {
        let Some(cargo) = std::env::var_os("CARGO") else { return };
        let profile =
            directory.file_name().filter(|name| *name != "debug").unwrap_or("test".as_ref());
        let mut build = Command::new(cargo);
        build.args(["test", "--quiet", "--no-run", "--test", "recover", "--profile"]).arg(profile);
        build.arg("--target-dir").arg(directory.parent().expect("the target directory"));
        match cenote_medium::planted::COMPILED {
            true => build.arg("--workspace"),
            false => build.args(["--package", "cenote-cli", "--package", "cenote-recover"]),
        };
        // Not this package's: cargo sets its own for what it builds.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_")) {
            build.env_remove(name);
        }
        assert!(build.status().expect("cargo runs").success(), "cenote-recover is not built");
    });
    program
}

/// The command, without a terminal. It keeps its list of windows among what the build makes, not in
/// the user's directories, and finds `cenote-recover` built.
pub(crate) fn cenote() -> Command {
    recover();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.env_remove("CARGO");
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).env_remove("NO_COLOR").env("COLUMNS", "80");
    command
}

/// Exit status, standard output and standard error of a run.
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).expect("output is text"),
            err: String::from_utf8(output.stderr).expect("errors are text"),
        }
    }
}

/// Runs `cenote` with arguments.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Ran {
    let ran: Ran = cenote().args(arguments).output().expect("cenote runs").into();
    assert!(!ran.err.contains("panicked") && !ran.err.contains("internal error"), "{}", ran.err);
    ran
}

impl Ran {
    /// Requires an exit status.
    #[track_caller]
    pub(crate) fn exits(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// Requires one line on standard error that begins with `cenote: ` and has all of `parts`.
    #[track_caller]
    pub(crate) fn complains(self, status: i32, parts: &[&str]) -> Self {
        let ran = self.exits(status);
        assert!(ran.err.starts_with("cenote: ") && ran.err.lines().count() == 1, "{}", ran.err);
        for part in parts {
            assert!(ran.err.contains(part), "{part:?} is not in: {}", ran.err);
        }
        ran
    }

    /// The only JSON object of the output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}", self.out);
        serde_json::from_str(&self.out).expect("one JSON object")
    }

    /// One JSON object for each line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON object a line"))
            .collect()
    }
}

/// A temporary directory with a store in it.
pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: PathBuf,
}

/// A store without pools.
pub(crate) fn empty() -> Fixture {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = dir.path().join("store");
    run([OsStr::new("format"), store.as_os_str()]).exits(0);
    Fixture { dir, store }
}

/// A store with the pool `words`.
pub(crate) fn with_pool() -> Fixture {
    let fixture = empty();
    fixture.run("create", &["words"]).exits(0);
    fixture
}

/// A store whose writer was killed in the middle: pool `tour`, some words of a text.
pub(crate) fn killed() -> Fixture {
    let fixture = empty();
    kill_a_builder(cenote(), &fixture.store);
    fixture
}

/// Runs a builder of the pool `tour` by this command, and kills it in the middle.
pub(crate) fn kill_a_builder(mut command: Command, store: &Path) {
    let text: String = (0..200_000).map(|i| format!("word{}\n", i % 977)).collect();
    let mut child = command
        .args([
            "__tour-build",
            "--batch",
            "50",
            "--parent",
            &std::process::id().to_string(),
            "--store",
        ])
        .arg(store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a builder");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("the builder reads");
    drop(stdin);
    // 20 transactions, then a kill whenever.
    let mut word = [0; 8];
    for _ in 0..20 {
        stdout.read_exact(&mut word).expect("an acknowledgement");
    }
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

/// A copy beside the store, by `cp -a`.
pub(crate) fn copied(fixture: &Fixture) -> String {
    let copy = fixture.dir.path().join("copy");
    directories::copy(&fixture.store, &copy);
    copy.to_str().expect("text").into()
}

impl Fixture {
    /// `cenote COMMAND STORE ARGUMENTS`.
    pub(crate) fn run(&self, command: &str, arguments: &[&str]) -> Ran {
        let mut all: Vec<&OsStr> = command.split(' ').map(OsStr::new).collect();
        all.push(self.store.as_os_str());
        all.extend(arguments.iter().map(OsStr::new));
        run(all)
    }

    /// Every file with its contents, and when it was changed.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
        let mut all = BTreeMap::new();
        collect(&self.store, &mut all);
        all
    }
}

fn collect(dir: &Path, all: &mut BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)>) {
    for entry in std::fs::read_dir(dir).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, all);
        } else {
            let changed = entry.metadata().and_then(|meta| meta.modified()).expect("a time");
            all.insert(path.clone(), (std::fs::read(&path).expect("readable"), changed));
        }
    }
}
