//! A log that fails its checks: shown, decided about by an operator, and remembered.

use crate::common::{Fixture, empty, run};

/// A store as its writer leaves it that dies inside a transaction of pool `tour`: a copy of the
/// files, made there, and written back into these files, because a copy of an open store is
/// refused. What is stored through a mapping is in the file for every reader.
fn inside_a_transaction() -> Fixture {
    let fixture = empty();
    let copied = fixture.dir.path().join("copied");
    {
        let store = cenote::Store::open(&fixture.store).expect("opened");
        let pool = store.pool("tour").expect("a pool");
        let write = |value: u64, then: &dyn Fn()| {
            let written = pool.write(|tx| -> cenote::Result<()> {
                let number = tx.alloc(value)?;
                tx.set_root(number)?;
                then();
                Ok(())
            });
            written.expect("committed");
        };
        write(1, &|| {});
        write(2, &|| copy(&fixture.store, &copied));
    }
    for name in
        fixture.files().keys().filter(|name| !copied.join(relative(&fixture, name)).exists())
    {
        std::fs::remove_file(fixture.store.join(relative(&fixture, name))).expect("removed");
    }
    copy(&copied, &fixture.store);
    fixture
}

/// A file's name in the store.
fn relative<'n>(fixture: &Fixture, name: &'n std::path::Path) -> &'n std::path::Path {
    name.strip_prefix(&fixture.store).unwrap_or(name)
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { assert!(std::fs::copy(from, to).is_ok()) }
    }
}

/// Such a store with a damaged log: its file, and where it is damaged.
fn with_damaged_log() -> (Fixture, std::path::PathBuf, usize) {
    let fixture = inside_a_transaction();
    // The first entry of a log in use says something else than its checksum.
    let dump = fixture.run("dump", &["--json"]).exits(0).json_lines();
    let log =
        dump.iter().find(|object| object["kind"] == "log" && object["entries"][0].is_object());
    let log = log.expect("a log with entries");
    let name: String =
        log["puddle"].as_str().expect("text").chars().filter(|c| *c != '-').collect();
    let path = fixture.store.join("puddles").join(name);
    let mut bytes = std::fs::read(&path).expect("readable");
    let magic = bytes.windows(8).position(|w| w == b"CENOTLOG").expect("a log");
    // Control line: the epoch, which is written twice.
    bytes[magic + 128] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    (fixture, path, magic)
}

#[test]
fn what_was_decided_about_a_log_is_no_finding_any_more() {
    let (fixture, ..) = with_damaged_log();
    let dir = fixture.store.to_str().expect("text");
    let client = run(["logs", "list", dir, "--json"]).exits(1).json()["client"].clone();
    run(["logs", "discard", dir, client.as_str().expect("text")]).exits(0);
    // The store remembers it, also after a session of another program.
    drop(cenote::Store::open(&fixture.store).expect("opened"));
    let check = fixture.run("check", &["--json"]).exits(1).json();
    let findings = check["findings"].as_array().expect("a list");
    assert!(findings.len() == 1 && findings[0]["kind"] == "torn", "{check}");
    assert_eq!(fixture.run("info", &["--json"]).exits(1).json()["torn"][0], "tour");
    fixture.run("trim", &["tour"]).complains(3, &["declare-whole"]);
    run(["logs", "declare-whole", dir, "absent"]).complains(3, &["absent"]);
    run(["logs", "declare-whole", dir, "tour"]).exits(0);
    // Nothing is wrong with it: it was traced before it was refused.
    let text = fixture.run("check", &[]).exits(0).out;
    assert!(text.contains("reachable"), "{text}");
}

#[test]
fn a_log_that_is_set_aside_is_shown_and_its_pool_looked_at() {
    let (fixture, path, magic) = with_damaged_log();
    let before = fixture.files();
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert!(check["findings"].to_string().contains("\"log\""), "{check}");
    for command in ["ls", "info", "show", "stats", "dump"] {
        let ran = fixture.run(command, &[]);
        assert!(matches!(ran.status, Some(0 | 1)), "{command}: {} {}", ran.out, ran.err);
    }
    fixture.run("dump", &["--pool", "tour", "--blocks"]).exits(1);
    let logs = |arguments: &[&str]| {
        let dir = fixture.store.to_str().expect("text");
        run(["logs", arguments[0], dir].iter().chain(&arguments[1..]))
    };
    let listed = logs(&["list", "--json"]).exits(1).json();
    assert_eq!(listed["pools"], serde_json::json!(["tour"]));
    let client = listed["client"].as_str().expect("text");
    assert!(logs(&["list"]).exits(1).out.contains(client));
    assert_eq!(fixture.files(), before);
    // An operator brings the file back, and decides.
    logs(&["apply", client]).complains(3, &["fail their checks still"]);
    logs(&["discard", "12"]).complains(2, &["cenote logs list"]);
    let mut now = std::fs::read(&path).expect("readable");
    now[magic + 128] ^= 1;
    std::fs::write(&path, &now).expect("written");
    assert!(logs(&["apply", client]).exits(0).out.contains("replayed"));
    assert!(logs(&["list"]).exits(0).out.contains("no log is set aside"));
    logs(&["discard", client]).complains(3, &["no log of client"]);
    let store = cenote::Store::open(&fixture.store).expect("opened");
    let pool = store.pool("tour").expect("to be written again");
    assert_eq!(pool.check().expect("checked").leaked_blocks, 0);
}
