//! What is not a store, damaged, in use or not to be written: named in one line, with the right exit status, and left as it is.

mod common;

use common::{Fixture, cenote, empty, killed, run, with_pool};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

const LOOKING: [&str; 5] = ["ls", "info", "check", "dump", "stats"];

#[test]
fn what_is_not_a_store_is_said_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "text").expect("written");
    let path = dir.path().to_str().expect("text");
    for command in LOOKING {
        run([command, path]).complains(3, &["is not a store", "cenote format"]);
        run([command, "/no/such/place"]).complains(3, &["/no/such/place"]);
        run([command, file.to_str().expect("text")]).complains(3, &["directory"]);
    }
    run(["create", path, "x"]).complains(3, &["is not a store"]);
    run(["rm", path, "x", "-y"]).complains(3, &["is not a store"]);
    run(["rm", path, "--store", "-y"]).complains(3, &["is not a store"]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 1, "something was left behind");
}

#[test]
fn looking_changes_no_file_of_a_sound_store() {
    looking_changes_nothing(&with_pool());
}

#[test]
fn looking_changes_no_file_of_a_store_whose_writer_was_killed() {
    let fixture = killed();
    let info = fixture.run("info", &["--json"]).exits(0).json();
    assert_eq!((info["clean"].as_bool(), info["crash"].as_str()), (Some(false), Some("process")));
    looking_changes_nothing(&fixture);
    let check = fixture.run("check", &["--json"]).exits(0).json();
    assert_eq!(check["sound"].as_bool(), Some(true), "{check}");
    let dump = fixture.run("dump", &["--json"]).exits(0).json_lines();
    assert!(dump.iter().any(|object| object["kind"] == "log"), "the log is not shown");
    assert!(dump.iter().any(|object| object["kind"] == "lease"), "the lease is not shown");
    assert!(
        dump.iter().any(|object| object["type"] == "tour::Entry" && object["fields"][0]["name"] == "left")
    );
    let blocks = fixture.run("dump", &["--pool", "tour", "--blocks", "--json"]).exits(0).json_lines();
    assert!(blocks.iter().filter(|object| object["type"] == "tour::Entry").count() >= 900);
    // Whoever writes recovers.
    fixture.run("create", &["new"]).exits(0);
    assert_eq!(fixture.run("info", &["--json"]).exits(0).json()["clean"].as_bool(), Some(true));
}

fn looking_changes_nothing(fixture: &Fixture) {
    let before = fixture.files();
    for command in LOOKING {
        fixture.run(command, &[]).exits(0);
        fixture.run(command, &["--json"]).exits(0);
    }
    assert_eq!(fixture.files(), before);
}

#[test]
fn damage_is_found_named_and_not_touched() {
    let fixture = with_pool();
    // The header of the pool's only puddle.
    let puddles: Vec<_> =
        std::fs::read_dir(fixture.store.join("puddles")).expect("readable").flatten().collect();
    let path = puddles[0].path();
    let mut bytes = std::fs::read(&path).expect("readable");
    bytes[70] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let before = fixture.files();
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert_eq!(check["sound"].as_bool(), Some(false));
    assert_eq!(check["findings"][0]["pool"], "words", "{check}");
    assert!(fixture.run("check", &[]).exits(1).out.contains("not sound"));
    assert_eq!(fixture.files(), before);
}

#[test]
fn one_damaged_superblock_is_read_from_the_other_and_said() {
    let fixture = with_pool();
    let path = fixture.store.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    assert!(fixture.run("info", &[]).exits(1).out.contains("superblock, copy 0"));
    fixture.run("check", &[]).exits(1);
    assert!(fixture.run("dump", &[]).exits(1).out.contains("damaged"));
    bytes[4096 + 100] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    for command in LOOKING {
        fixture.run(command, &[]).complains(3, &["both copies of the superblock"]);
    }
}

#[test]
fn a_truncated_puddle_is_damage_and_no_crash() {
    let fixture = with_pool();
    let puddles: Vec<_> =
        std::fs::read_dir(fixture.store.join("puddles")).expect("readable").flatten().collect();
    let file = std::fs::OpenOptions::new().write(true).open(puddles[0].path()).expect("opened");
    file.set_len(8192).expect("truncated");
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert!(check["findings"].to_string().contains("words"), "{check}");
    for (command, status) in [("ls", 0), ("stats", 3)] {
        assert_eq!(fixture.run(command, &[]).status, Some(status), "{command}");
    }
}

#[test]
fn a_leak_is_found_with_its_type_and_address() {
    use cenote::{Persist, Store};
    #[derive(Persist)]
    struct Lost {
        value: u64,
    }
    let fixture = with_pool();
    {
        let store = Store::open(&fixture.store).expect("opened");
        let pool = store.pool("words").expect("a pool");
        pool.write(|tx| tx.alloc(Lost { value: 7 }).map(|_| ())).expect("committed");
        drop(pool);
        store.close().expect("closed");
    }
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert_eq!(check["findings"][0]["kind"], "leak", "{check}");
    assert!(check["findings"][0]["text"].as_str().is_some_and(|text| text.contains("Lost")));
    assert!(fixture.run("check", &[]).exits(1).out.contains("Lost"));
}

#[test]
fn a_second_opener_is_told_who_the_first_is() {
    let fixture = with_pool();
    let store = cenote::Store::open(&fixture.store).expect("opened");
    let pid = std::process::id().to_string();
    for command in LOOKING {
        fixture.run(command, &[]).complains(4, &["in use", &pid, "--wait"]);
    }
    fixture.run("create", &["x"]).complains(4, &[&pid]);
    fixture.run("rm", &["words", "-y"]).complains(4, &[&pid]);
    fixture.run("rm", &["--store", "-y"]).complains(4, &[&pid]);
    fixture.run("ls", &["--wait", "0.2"]).complains(4, &["after 0.2 s"]);
    // Waiting helps if the first one goes.
    let waiting = cenote().arg("ls").arg(&fixture.store).args(["--wait", "20"]).spawn().expect("cenote runs");
    std::thread::sleep(std::time::Duration::from_millis(50));
    store.close().expect("closed");
    assert!(waiting.wait_with_output().expect("it ends").status.success());
}

#[test]
fn a_read_only_directory_can_be_looked_at_and_not_written() {
    let fixture = with_pool();
    let modes = |directory: u32, file: u32| {
        for (path, _) in fixture.files() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file)).expect("allowed");
        }
        for path in [fixture.store.join("puddles"), fixture.store.clone()] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(directory)).expect("allowed");
        }
    };
    modes(0o500, 0o400);
    if std::fs::OpenOptions::new().append(true).open(fixture.store.join("superblock")).is_ok() {
        modes(0o700, 0o600);
        println!("skipped: this user may write to everything");
        return;
    }
    for command in LOOKING {
        fixture.run(command, &[]).exits(0);
    }
    fixture.run("create", &["x"]).exits(3);
    modes(0o700, 0o600);
}

#[test]
fn a_store_of_a_newer_release_is_refused_with_its_version() {
    let fixture = empty();
    let path = fixture.store.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    for copy in [0, 4096] {
        bytes[copy + 8] = 9;
    }
    std::fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("written");
    fixture.run("info", &[]).complains(3, &["version 9", "newer release"]);
}
