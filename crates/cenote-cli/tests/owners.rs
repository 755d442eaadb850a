//! The superuser looks after stores of other users: their files stay theirs.

use crate::common::{cenote, run};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const USER: u32 = 54_321;
const GROUP: u32 = 54_322;

/// A directory of another user, and the command where that user can run it; `None` without the
/// rights of the superuser.
struct Home {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Home {
    fn new() -> Option<Self> {
        if cenote_sys::process::uid() != 0 {
            println!("skipped: only the superuser can be another user");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("changed");
        // The build's directory may be closed to others.
        let program = dir.path().join("cenote");
        let built = cenote().get_program().to_owned();
        if std::fs::hard_link(&built, &program).is_err() {
            std::fs::copy(&built, &program).expect("copied");
        }
        for name in ["home", "home/state"] {
            let made = dir.path().join(name);
            std::fs::create_dir(&made).expect("made");
            chown(&made, Some(USER), Some(GROUP)).expect("given");
        }
        Some(Self { dir, program })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join("home").join(name).to_str().expect("text").into()
    }

    /// A command of the user's; it works.
    fn user(&self, arguments: &[&str]) {
        let mut command = Command::new(&self.program);
        command.uid(USER).gid(GROUP).args(arguments).env("XDG_STATE_HOME", self.path("state"));
        let done = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {said}");
    }

    /// A program of the user's is killed while it writes.
    fn killed(&self, store: &str) {
        let mut command = Command::new(&self.program);
        command.uid(USER).gid(GROUP).env("XDG_STATE_HOME", self.path("state"));
        crate::common::kill_a_builder(command, Path::new(store));
    }
}

/// Files and directories that are not the user's.
fn of_others(at: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(at).expect("readable").flatten() {
        let (path, meta) = (entry.path(), entry.metadata().expect("looked at"));
        if (meta.uid(), meta.gid()) != (USER, GROUP) {
            found.push(path.clone());
        }
        if meta.is_dir() {
            found.extend(of_others(&path));
        }
    }
    found
}

#[test]
fn what_the_superuser_makes_in_a_store_is_its_owners() {
    let Some(home) = Home::new() else { return };
    let store = home.path("store");
    home.user(&["format", &store]);
    home.user(&["create", &store, "a"]);
    home.killed(&store);
    let copy = home.dir.path().join("copy");
    let copy = copy.to_str().expect("text");
    let commands: [&[&str]; 6] = [
        &["check", &store],
        &["backup", &store, copy],
        &["reclaim", &store],
        &["create", &store, "b", "--mode", "shadowed"],
        &["object", "create", &store, "raw", "--size", "8K"],
        &["clone", &store, "b", "c"],
    ];
    for command in commands {
        run(command);
        assert_eq!(of_others(Path::new(&store)), [] as [PathBuf; 0], "{command:?}");
    }
    home.user(&["check", &store]);
    home.user(&["create", &store, "d", "--mode", "shadowed"]);
    home.user(&["rm", &store, "b", "-y"]);
}

/// A directory that was made for a store, and given away before it was formatted.
#[test]
fn a_store_that_the_superuser_formats_is_its_directorys_owners() {
    let Some(home) = Home::new() else { return };
    let store = home.path("store");
    std::fs::create_dir(&store).expect("made");
    chown(&store, Some(USER), Some(GROUP)).expect("given");
    run(["format", &store]).exits(0);
    run(["create", &store, "a"]).exits(0);
    assert_eq!(of_others(Path::new(&store)), [] as [PathBuf; 0]);
    home.user(&["create", &store, "b"]);
}

/// In a container without that right nothing is made that the owner could not open.
#[test]
fn a_superuser_that_may_not_give_files_away_makes_none() {
    let Some(home) = Home::new() else { return };
    let store = home.path("store");
    home.user(&["format", &store]);
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-chown").arg(cenote().get_program());
    command.args(["create", &store, "a"]).env("XDG_STATE_HOME", home.path("state"));
    let Ok(done) = command.output() else {
        return println!("skipped: there is no setpriv");
    };
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{said}");
    for part in [&*store, "would belong to user 0", "run it as user 54321"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert_eq!(of_others(Path::new(&store)), [] as [PathBuf; 0]);
    home.user(&["create", &store, "a"]);
}
