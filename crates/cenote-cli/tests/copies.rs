//! Copies of a store that a crash left: two ways out, in each of which the operator answers for it
//! that no process had the store open while it was copied; and the option that gives up a journal,
//! in every command that has it.

use crate::common::{Fixture, copied, empty, killed, run};
use std::ffi::OsStr;

/// Makes an object without protection.
fn with_object(fixture: &Fixture) {
    let store = fixture.store.as_os_str();
    let make = ["object", "create"].map(OsStr::new);
    let rest = ["raw", "--size", "8K"].map(OsStr::new);
    run(make.into_iter().chain([store]).chain(rest)).exits(0);
}

/// Blocks that the pool holds by roots.
fn reached(store: &str) -> u64 {
    let checked = run(["check", store, "--json"]).exits(0).json();
    assert_eq!(checked["sound"], true, "{checked}");
    let pool = &checked["pools"][0];
    assert_eq!(pool["pool"], "tour", "{checked}");
    pool["reached_blocks"].as_u64().expect("a number")
}

#[test]
fn a_copy_of_a_crashed_store_is_adopted_if_the_operator_answers_for_it() {
    let fixture = killed();
    let copy = copied(&fixture);
    run(["check", &copy]).complains(3, &["may be of different moments", "cenote adopt"]);
    let out = run(["adopt", &copy]).exits(1).out;
    assert!(out.contains("not whole: pool \"tour\"") && out.contains("--of-one-moment"), "{out}");
    let out = run(["adopt", &copy, "--of-one-moment"]).exits(0).out;
    assert!(out.contains("is a store of its own"), "{out}");
    // As the original recovers: to its last transaction.
    fixture.run("reclaim", &[]).exits(0);
    assert_eq!(reached(&copy), reached(fixture.store.to_str().expect("text")));
    let out = run(["adopt", &copy]).exits(0).out;
    assert!(out.contains("already"), "{out}");
}

#[test]
fn a_pool_that_a_copy_may_have_torn_is_declared_whole() {
    let fixture = killed();
    let copy = copied(&fixture);
    // Once before it is recorded that the pool is not covered, once after.
    for adopted_before in [false, true] {
        if adopted_before {
            run(["rm", &copy, "--store", "-y"]).exits(0);
            copied(&fixture);
            run(["adopt", &copy]).exits(1);
        }
        let out = run(["logs", "declare-whole", &copy, "tour", "--accept-copy"]).exits(0).out;
        assert!(out.contains("declared whole"), "{out}");
        let out = run(["logs", "declare-whole", &copy, "tour", "--accept-copy"]).exits(0).out;
        assert!(out.contains("whole already"), "{out}");
        run(["adopt", &copy]).exits(0);
        assert!(reached(&copy) > 100);
    }
}

#[test]
fn an_object_that_a_copy_may_have_torn_is_adopted_too() {
    let fixture = killed();
    with_object(&fixture);
    let copy = {
        // In use while it is copied, and in truth of one moment: nothing writes.
        let _store = cenote::Store::open(&fixture.store).expect("opened");
        copied(&fixture)
    };
    let out = run(["adopt", &copy]).exits(1).out;
    assert!(out.contains("not whole: object \"raw\"") && out.contains("--of-one-moment"), "{out}");
    assert!(!out.contains("PowerLossPolicy"), "{out}");
    run(["adopt", &copy, "--of-one-moment"]).exits(0);
    run(["object", "export", &copy, "raw", "--output", &format!("{copy}.raw")]).exits(0);
}

/// A store whose journal of psyncs of pools is lost, with pools in shadowed mode.
fn without_journal() -> Fixture {
    let fixture = empty();
    for pool in ["a", "b"] {
        fixture.run("create", &[pool, "--mode", "shadowed"]).exits(0);
    }
    std::fs::write(fixture.store.join("journal.pools"), [0x55; 64]).expect("written");
    fixture
}

/// Each command that has the option does its work with it: after the journal is given up, the pools
/// may be torn, and a command that opens one says so.
#[test]
fn each_command_with_the_option_gives_up_a_journal() {
    let commands: [(&[&str], i32); 8] = [
        (&["reclaim"], 1),
        (&["trim"], 1),
        (&["relocate"], 0),
        (&["create", "c"], 0),
        (&["clone", "a", "c"], 0),
        (&["randomize", "a"], 0),
        (&["rm", "a", "-y"], 0),
        (&["chmod", "a", "640"], 0),
    ];
    for (command, status) in commands {
        let fixture = without_journal();
        let with = [&command[1..], &["--give-up-journal"]].concat();
        let ran = fixture.run(command[0], &with).exits(status);
        assert!(status == 0 || ran.out.contains("cenote logs declare-whole"), "{}", ran.out);
        // The next needs it no more.
        fixture.run("create", &["d", "--mode", "shadowed"]).exits(0);
    }
    // Where nothing is changed it is not offered.
    for command in ["ls", "info", "check", "dump", "stats", "verify"] {
        let help = run([command, "--help"]).exits(0).out;
        assert!(!help.contains("--give-up-journal"), "{command}");
    }
}

/// A copy of a store that was in use, with an object, whose journal of objects is of an earlier
/// session.
fn with_older_journal() -> (Fixture, String) {
    let fixture = empty();
    with_object(&fixture);
    let bytes = fixture.dir.path().join("bytes");
    std::fs::write(&bytes, [7; 4096]).expect("written");
    let store = fixture.store.to_str().expect("text").to_owned();
    let bytes = bytes.to_str().expect("text").to_owned();
    let import = || run(["object", "import", &store, "raw", "--input", &bytes]).exits(0);
    import();
    let older = std::fs::read(fixture.store.join("journal")).expect("read");
    std::fs::write(&bytes, [8; 4096]).expect("written");
    import();
    let copy = {
        let _store = cenote::Store::open(&fixture.store).expect("opened");
        copied(&fixture)
    };
    std::fs::write(format!("{copy}/journal"), older).expect("written");
    (fixture, copy)
}

#[test]
fn a_copy_with_an_older_journal_of_objects_is_adopted_if_that_is_given_up() {
    let (_keep, copy) = with_older_journal();
    for command in [&["adopt", &copy][..], &["object", "rm", &copy, "raw", "-y", "--accept-copy"]] {
        let words = ["the journal of objects, journal,", "--give-up-journal", "half a psync"];
        run(command).complains(3, &words);
    }
    run(["object", "ls", &copy, "--accept-copy"])
        .complains(3, &["the journal of objects, journal"]);
    let out = run(["adopt", &copy, "--give-up-journal"]).exits(1).out;
    assert!(out.contains("given up:") && out.contains("half a psync"), "{out}");
    assert!(out.contains("not whole: object \"raw\""), "{out}");
    // The next needs it no more.
    let out = run(["adopt", &copy, "--of-one-moment"]).exits(0).out;
    assert!(!out.contains("given up"), "{out}");
    run(["object", "export", &copy, "raw", "--output", &format!("{copy}.raw")]).exits(0);
}

#[test]
fn an_object_is_removed_from_a_copy_whose_journal_of_objects_is_given_up() {
    let (_keep, copy) = with_older_journal();
    let rm = ["object", "rm", &copy, "raw", "-y", "--accept-copy", "--give-up-journal", "--json"];
    let out = run(rm).exits(0).out;
    assert!(out.contains("\"given_up\":\"journal\"") && out.contains("[\"raw\"]"), "{out}");
    run(["adopt", &copy]).exits(0);
    run(["check", &copy]).exits(0);
}

#[test]
fn a_copy_whose_journal_of_pools_cannot_be_used_is_said_to_be_so() {
    let fixture = empty();
    fixture.run("create", &["a", "--mode", "shadowed"]).exits(0);
    fixture.run("rm", &["a", "-y"]).exits(0);
    let copy = {
        let _store = cenote::Store::open(&fixture.store).expect("opened");
        copied(&fixture)
    };
    std::fs::write(format!("{copy}/journal.pools"), [0x55; 64]).expect("written");
    // Adopted, and a store of its own already.
    for words in ["done:", "already"] {
        let out = run(["adopt", &copy]).exits(1).out;
        assert!(out.contains(words) && out.contains("journal of psyncs"), "{out}");
        assert!(out.contains("--mode shadowed --give-up-journal"), "{out}");
    }
    run(["create", &copy, "b", "--mode", "shadowed", "--give-up-journal"]).exits(0);
    run(["adopt", &copy]).exits(0);
    run(["check", &copy]).exits(0);
}

#[test]
fn a_copy_that_looks_closed_is_said_to_be_unchecked() {
    let fixture = empty();
    let out = fixture.run("adopt", &[]).exits(0).out;
    assert!(out.contains("already") && out.contains("were not checked: `cenote check"), "{out}");
    std::fs::remove_file(fixture.store.join("catalog.0")).expect("removed");
    let out = fixture.run("adopt", &[]).exits(1).out;
    assert!(out.contains("already") && out.contains("damaged: catalog.0"), "{out}");
    fixture.run("adopt", &[]).exits(0);
}
