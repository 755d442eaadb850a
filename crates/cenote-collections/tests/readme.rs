//! The program of the README does what the README says of it.

use cenote::Store;
use cenote_testkit::child::again;

/// The directory in which the program runs, for the child of these tests.
const CHILD: &str = "CENOTE_README_CHILD";

mod program {
    include!("readme/program.rs");

    pub(super) fn run() {
        main();
    }
}

#[test]
fn the_readme_shows_this_program() {
    let readme = include_str!("../../../README.md");
    let shown = format!("```rust,no_run\n{}```\n", include_str!("readme/program.rs"));
    assert!(readme.contains(&shown), "README.md and tests/readme/program.rs differ");
}

#[test]
fn the_program_of_the_readme_runs_twice_and_leaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for run in 1..=2 {
        let mut child = again("readme::child");
        child.current_dir(dir.path());
        let output = child.env(CHILD, "1").env("XDG_STATE_HOME", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("run {run}")), "{said}");
    }
    let store = Store::open(dir.path().join("my-store")).unwrap();
    let report = store.pool("runs").unwrap().check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.leaked_blocks, 0, "{report:?}");
}

/// The program, in a process of its own: it uses the working directory.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        program::run();
    }
}
