//! What a new user met: arguments that are no text, help of nested commands, damage that some
//! commands passed over, and advice that did not work.

use crate::common::{Fixture, copied, empty, killed, run, with_pool};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

fn object(fixture: &Fixture, command: &str, arguments: &[&str]) -> crate::common::Ran {
    let first = ["object", command].map(OsStr::new).into_iter();
    run(first.chain([fixture.store.as_os_str()]).chain(arguments.iter().map(OsStr::new)))
}

/// A key in a file.
fn key(fixture: &Fixture) -> String {
    let path = fixture.dir.path().join("key");
    let bytes: [u8; 32] = core::array::from_fn(|i| i as u8 ^ 0x3c);
    std::fs::write(&path, bytes).expect("written");
    path.to_str().expect("text").into()
}

/// The file of an object's puddle.
fn file_of(fixture: &Fixture, name: &str) -> PathBuf {
    let info = object(fixture, "info", &[name, "--json"]).exits(0).json();
    let puddle = info["puddle"].as_str().expect("an identity").replace('-', "");
    fixture.store.join("puddles").join(puddle)
}

#[test]
fn arguments_that_are_no_text_are_wrong_arguments() {
    let bytes = OsStr::from_bytes(b"\xff");
    run([bytes]).complains(2, &["cenote --help"]);
    run([OsStr::new("--json"), bytes]).complains(2, &["cenote --help"]);
    run([OsStr::new("create"), OsStr::new("s"), bytes]).complains(2, &["cenote create --help"]);
}

#[test]
fn a_wrong_argument_is_answered_with_the_help_of_its_command() {
    run(["object", "create", "s", "x"]).complains(2, &["--size", "`cenote object create --help`"]);
    run(["logs", "apply", "s", "x"]).complains(2, &["`cenote logs apply --help`"]);
    let ran = run(["ls", "s", "--wait", "-1"]).complains(2, &["-1", "cenote ls --help"]);
    assert!(!ran.err.contains("-- -1"), "{}", ran.err);
}

#[test]
fn the_most_similar_command_is_named_first() {
    let said = run(["fromat", "s"]).complains(2, &["`cenote --help`"]).err;
    let at = |name: &str| said.find(name).unwrap_or(usize::MAX);
    assert!(at("'format'") < at("'relocate'"), "{said}");
}

#[test]
fn a_directory_is_no_socket_of_a_daemon() {
    let fixture = empty();
    run([OsStr::new("top"), fixture.store.as_os_str()])
        .complains(3, &["give the socket of a daemon that runs"]);
}

#[test]
fn options_that_contradict_each_other_are_wrong_arguments() {
    let fixture = empty();
    let key = key(&fixture);
    for mode in ["encryption", "both", "authenticated"] {
        fixture.run("create", &["a", "--at-rest", mode]).complains(2, &["--key-file"]);
    }
    for wrong in [["--at-rest", "none"], ["--at-rest", "integrity"], ["--mode", "direct"]] {
        fixture.run("create", &[&["a", "--key-file", &key], &wrong[..]].concat()).exits(2);
    }
    let letter = fixture.dir.path().join("letter");
    std::fs::write(&letter, "dear").expect("written");
    let letter = letter.to_str().expect("text");
    fixture
        .run("create", &["a", "--key-file", letter])
        .complains(3, &["neither (4 bytes)", "--passphrase-file"]);
    fixture.run("create", &["a", "--key-file", "/no/key"]).complains(3, &["check the path"]);
}

#[test]
fn every_damaged_file_of_a_listed_pool_is_told_by_ls() {
    let fixture = empty();
    fixture.run("create", &["words", "--mode", "shadowed"]).exits(0);
    fixture.run("ls", &[]).exits(0);
    let primaries = std::fs::read_dir(fixture.store.join("primary")).expect("readable");
    for primary in primaries.flatten() {
        std::fs::remove_file(primary.path()).expect("removed");
    }
    let out = fixture.run("ls", &[]).exits(1).out;
    assert!(out.contains("words") && out.contains("damaged"), "{out}");
}

#[test]
fn an_object_whose_file_is_missing_hides_no_other() {
    let fixture = empty();
    for name in ["gone", "there"] {
        object(&fixture, "create", &[name, "--size", "8K", "--at-rest", "integrity"]).exits(0);
    }
    std::fs::remove_file(file_of(&fixture, "gone")).expect("removed");
    let out = object(&fixture, "ls", &[]).exits(1).out;
    assert!(out.contains("there") && out.contains("object \"gone\""), "{out}");
    let out = fixture.run("verify", &[]).exits(1).out;
    assert!(out.contains("of object \"there\"") && out.contains("\"gone\""), "{out}");
    object(&fixture, "rm", &["gone", "-y"]).exits(0);
    object(&fixture, "ls", &[]).exits(0);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn a_missing_journal_of_objects_is_told_and_is_in_no_backup() {
    let fixture = empty();
    object(&fixture, "create", &["raw", "--size", "8K"]).exits(0);
    let info = fixture.run("info", &["--json"]).exits(0).json();
    assert_eq!(info["objects"], 1, "{info}");
    std::fs::remove_file(fixture.store.join("journal")).expect("removed");
    let out = fixture.run("info", &[]).exits(1).out;
    assert!(out.contains("journal of objects"), "{out}");
    let copy = fixture.dir.path().join("copy");
    let copy = copy.to_str().expect("text");
    let ran = fixture.run("backup", &[copy]).complains(3, &["journal", "missing"]);
    // That is for journals of pools.
    assert!(!ran.err.contains("--give-up-journal"), "{}", ran.err);
    assert!(!PathBuf::from(copy).exists());
}

#[test]
fn pools_of_a_journal_that_was_given_up_are_said_to_be_so() {
    let fixture = empty();
    fixture.run("create", &["words", "--mode", "shadowed"]).exits(0);
    std::fs::remove_file(fixture.store.join("journal.pools")).expect("removed");
    fixture.run("create", &["more"]).complains(3, &["--give-up-journal"]);
    fixture.run("create", &["more", "--give-up-journal"]).exits(0);
    for command in ["check", "info"] {
        let out = fixture.run(command, &[]).exits(1).out;
        let words: Vec<&str> = out.split_whitespace().collect();
        assert!(words.join(" ").contains("or a journal was given up"), "{command}: {out}");
    }
}

#[test]
fn what_has_a_second_copy_is_said_to_be_written_again() {
    let fixture = with_pool();
    std::fs::remove_file(fixture.store.join("catalog.0")).expect("removed");
    let out = fixture.run("check", &[]).exits(1).out;
    assert!(out.contains("writes it again"), "{out}");
    fixture.run("create", &["more"]).exits(0);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn commands_on_an_unchecked_copy_say_what_comes_next() {
    let fixture = killed();
    let copy = copied(&fixture);
    let backup = fixture.dir.path().join("backup");
    let backup = backup.to_str().expect("text");
    let out = run(["backup", &copy, backup, "--accept-copy"]).exits(1).out;
    assert!(out.contains(&format!("cenote adopt {backup}")), "{out}");
    run(["ls", backup]).complains(3, &["cenote adopt"]);
    let out = run(["adopt", &copy]).exits(1).out;
    assert!(!out.contains("pool \"tour\": pool \"tour\""), "{out}");
    let out = run(["logs", "declare-whole", &copy, "tour", "--accept-copy"]).exits(0).out;
    assert!(out.contains(&format!("cenote adopt {copy}")), "{out}");
    run(["adopt", &copy]).exits(0);
    run(["ls", &copy]).exits(0);
}

#[test]
fn a_pool_without_its_key_is_no_finding_of_stats() {
    let fixture = with_pool();
    let key = key(&fixture);
    fixture.run("create", &["secret", "--key-file", &key]).exits(0);
    let out = fixture.run("stats", &[]).exits(0).out;
    assert!(out.contains("not counted: pool \"secret\"") && out.contains("words"), "{out}");
    fixture.run("stats", &["secret"]).complains(3, &["--key-file"]);
    fixture.run("stats", &["--key-file", &key]).exits(0);
}

#[test]
fn an_export_of_an_object_that_fails_leaves_no_file() {
    let fixture = empty();
    object(&fixture, "create", &["raw", "--size", "8K", "--at-rest", "integrity"]).exits(0);
    let text = fixture.dir.path().join("text");
    std::fs::write(&text, vec![7; 9000]).expect("written");
    let input = text.to_str().expect("text");
    object(&fixture, "import", &["raw", "--input", input])
        .complains(3, &["9000 bytes", "8192 from 0 on", "nothing was changed", "larger object"]);
    object(&fixture, "import", &["raw", "--input", input, "--at", "9K"])
        .complains(2, &["--at 9216 is beyond the end", "8192 bytes"]);
    std::fs::write(&text, vec![7; 8192]).expect("written");
    object(&fixture, "import", &["raw", "--input", input]).exits(0);
    let file = file_of(&fixture, "raw");
    let mut bytes = std::fs::read(&file).expect("read");
    let at = bytes.windows(64).position(|part| part == [7; 64]).expect("its values");
    bytes[at] = 8;
    std::fs::write(&file, bytes).expect("written");
    let output = fixture.dir.path().join("output");
    let name = output.to_str().expect("text");
    object(&fixture, "export", &["raw", "--output", name]).complains(3, &["--skip-damaged"]);
    assert!(!output.exists(), "a part of it is there");
    object(&fixture, "export", &["raw", "--output", name, "--skip-damaged"]).exits(1);
    assert_eq!(std::fs::read(&output).expect("read").len(), 8192);
}

/// A check goes on past a file that the next writer refuses because of its links.
#[test]
fn a_file_with_a_hard_link_is_a_finding_of_check() {
    let fixture = empty();
    fixture.run("create", &["words", "--mode", "direct"]).exits(0);
    fixture.run("create", &["deeds", "--mode", "shadowed"]).exits(0);
    object(&fixture, "create", &["raw", "--size", "8K"]).exits(0);
    let link = fixture.dir.path().join("link");
    for directory in ["puddles", "primary", "."] {
        for entry in std::fs::read_dir(fixture.store.join(directory)).expect("readable").flatten() {
            let name = entry.file_name().into_string().expect("text");
            if !entry.path().is_file() || name == "lock" {
                continue;
            }
            std::fs::hard_link(entry.path(), &link).expect("linked");
            let out = fixture.run("check", &[]).exits(1).out;
            for part in
                [&*name, "2 names (hard links)", "pool \"words\"", "pool \"deeds\"", "1 finding"]
            {
                assert!(out.contains(part), "{directory}/{name}: {part:?} is not in {out}");
            }
            fixture.run("info", &[]).exits(1);
            std::fs::remove_file(&link).expect("removed");
            fixture.run("check", &[]).exits(0);
        }
    }
}

/// The reader of an archive goes away: one line, and no file is left or changed.
#[test]
fn an_export_whose_reader_ends_says_so_and_leaves_nothing() {
    let fixture = killed();
    fixture.run("reclaim", &[]).exits(0);
    let before = fixture.files();
    let mut child = crate::common::cenote();
    child.arg("export").arg(&fixture.store).args(["tour", "-"]);
    child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = child.spawn().expect("it runs");
    let mut first = [0];
    let mut out = child.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut out, &mut first).expect("a byte");
    drop(out);
    let ran: crate::common::Ran = child.wait_with_output().expect("it ends").into();
    let said = ["the reader of standard output ended", "incomplete", "unchanged"];
    ran.complains(3, &said);
    assert_eq!(fixture.files(), before);
    fixture.run("export", &["tour", "/dev/null"]).exits(3);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn commands_of_commands_have_manual_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    run(["man", dir.path().to_str().expect("text")]).exits(0);
    for (command, subs) in [
        ("object", &["create", "ls", "info", "rm", "import", "export"][..]),
        ("logs", &["list", "apply", "discard", "declare-whole"]),
    ] {
        for sub in subs {
            let page = dir.path().join(format!("cenote-{command}-{sub}.1"));
            let text = std::fs::read_to_string(page).expect("a page");
            let name = format!("cenote\\-{command}\\-{}", sub.replace('-', "\\-"));
            assert!(text.contains(&name) && text.contains("Exit status"), "{text}");
        }
    }
    assert!(!dir.path().join("cenote-help.1").exists());
    assert!(!dir.path().join("cenote-__tour-build.1").exists());
}
