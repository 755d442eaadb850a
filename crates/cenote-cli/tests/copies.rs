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
    assert!(out.contains("is adopted"), "{out}");
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
    for command in ["ls", "info", "check", "dump", "show", "stats", "verify"] {
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
    assert!(out.contains("opens as a store already") && out.contains("run `cenote check"), "{out}");
    std::fs::remove_file(fixture.store.join("catalog.0")).expect("removed");
    let out = fixture.run("adopt", &[]).exits(1).out;
    assert!(out.contains("already") && out.contains("damaged: catalog.0"), "{out}");
    fixture.run("adopt", &[]).exits(0);
}

/// The command that a message names after a word, as the operator would type it.
fn told(said: &str, begin: &str) -> Vec<String> {
    let named = said.split('`').find(|part| part.starts_with(begin));
    let named = named.unwrap_or_else(|| panic!("no {begin:?} in: {said}"));
    named.split(' ').skip(1).map(str::to_owned).collect()
}

/// A copy of a store that a killed program had open, with a pool and an object that may be torn,
/// and a pool that is whole.
fn hot_copy() -> (Fixture, String) {
    let fixture = empty();
    with_object(&fixture);
    fixture.run("create", &["whole"]).exits(0);
    crate::common::kill_a_builder(crate::common::cenote(), &fixture.store);
    let copy = copied(&fixture);
    (fixture, copy)
}

/// Each command about the copy names commands that end it, and these do: the first way in one, the
/// second in one more.
#[test]
fn advice_about_a_copy_leads_to_a_store_of_its_own_in_two_commands() {
    let looks: [&[&str]; 5] =
        [&["check"], &["check", "--accept-copy"], &["adopt"], &["ls"], &["reclaim"]];
    for look in looks {
        for way in ["--of-one-moment", "--remove-torn"] {
            let (_keep, copy) = hot_copy();
            let ran = run([&look[..1], &[copy.as_str()], &look[1..]].concat());
            let said = format!("{}{}", ran.out, ran.err);
            assert!(ran.status != Some(0) && said.contains(&copy), "{look:?}: {said}");
            let next = told(&said, &format!("cenote adopt {copy} {way}"));
            // Only data that may be torn is asked about.
            let next =
                if way == "--remove-torn" { [next, vec!["-y".into()]].concat() } else { next };
            let out = run(&next).exits(0).out;
            assert!(out.contains("is adopted"), "{look:?}: {out}");
            run(["check", &copy]).exits(0);
            let kept = run(["ls", &copy, "--json"]).exits(0).json_lines().len();
            assert_eq!(kept, if way == "--remove-torn" { 1 } else { 2 }, "{look:?}");
        }
    }
}

#[test]
fn what_may_be_torn_is_removed_from_a_copy_if_the_operator_says_so() {
    let (_keep, copy) = hot_copy();
    run(["adopt", &copy, "--remove-torn"]).complains(2, &["pool \"tour\"", "\"raw\"", "--yes"]);
    assert_eq!(run(["ls", &copy, "--accept-copy", "--json"]).json_lines().len(), 2);
    run(["adopt", &copy, "--remove-torn", "--of-one-moment"]).exits(2);
    let out = run(["adopt", &copy, "--remove-torn", "-y"]).exits(0).out;
    for part in
        ["removed: pool \"tour\": it was open for writing", "removed: object \"raw\"", "done:"]
    {
        assert!(out.contains(part), "{part:?} is not in {out}");
    }
    run(["object", "ls", &copy, "--json"]).exits(0);
}

/// A command that opens all of an accepted copy, and so makes it a store of its own, says so.
#[test]
fn a_command_that_makes_a_copy_a_store_of_its_own_says_so() {
    let commands: [(&str, &[&str]); 3] =
        [("trim", &[]), ("export", &["again", "-"]), ("reclaim", &[])];
    for (command, rest) in commands {
        let fixture = empty();
        fixture.run("create", &["words", "--mode", "shadowed"]).exits(0);
        fixture.run("clone", &["words", "again"]).exits(0);
        fixture.run("rm", &["words", "-y"]).exits(0);
        let copy = {
            let _store = cenote::Store::open(&fixture.store).expect("opened");
            copied(&fixture)
        };
        let mut export = crate::common::cenote();
        export.args([command, &copy, "--accept-copy"]).args(rest);
        let done = export.output().expect("it runs");
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command}: {err}");
        let own = run(["info", &copy]).status == Some(0);
        assert_eq!(own, err.contains("is adopted now"), "{command}: {err}");
        assert!(own || command != "trim", "{command} opens all of it");
    }
}
