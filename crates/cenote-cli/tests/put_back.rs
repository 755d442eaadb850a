//! A closed store in which the file of one object, or the root puddle of one pool, is an older one:
//! each command that looks at the store says which.

use crate::common::{Fixture, Ran, empty, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

fn object(fixture: &Fixture, command: &str, arguments: &[&str]) -> Ran {
    let first = ["object", command].map(OsStr::new).into_iter();
    run(first.chain([fixture.store.as_os_str()]).chain(arguments.iter().map(OsStr::new)))
}

/// The file of an object's puddle.
fn file_of(fixture: &Fixture, name: &str) -> PathBuf {
    let info = object(fixture, "info", &[name, "--json"]).exits(0).json();
    let puddle = info["puddle"].as_str().expect("an identity").replace('-', "");
    fixture.store.join("puddles").join(puddle)
}

/// A store with objects of one mode, which are imported twice. The answer: the options with the
/// key, if there is one, and the file of "older" as it was between the imports.
fn imported(mode: &str) -> (Fixture, Vec<String>, PathBuf, Vec<u8>) {
    let fixture = empty();
    let (key, input) = (fixture.dir.path().join("key"), fixture.dir.path().join("input"));
    let bytes: [u8; 32] = core::array::from_fn(|i| i as u8 ^ 0x3c);
    std::fs::write(&key, bytes).expect("written");
    let keyed = ["encryption", "both", "authenticated"].contains(&mode);
    let with_key = if keyed { vec!["--key-file".into(), text(&key)] } else { Vec::new() };
    let with_key = |more: &[&str]| -> Vec<String> {
        more.iter().map(|word| (*word).to_owned()).chain(with_key.clone()).collect()
    };
    let call = |command: &str, more: &[&str]| {
        let words = with_key(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        object(&fixture, command, &words).exits(0);
    };
    for name in ["older", "beside"] {
        call("create", &[name, "--size", "8K", "--at-rest", mode]);
    }
    let mut between = Vec::new();
    for value in [1, 2] {
        std::fs::write(&input, [value; 8192]).expect("written");
        for name in ["older", "beside"] {
            call("import", &[name, "--input", &text(&input)]);
        }
        if value == 1 {
            between = std::fs::read(file_of(&fixture, "older")).expect("read");
        }
    }
    let file = file_of(&fixture, "older");
    (fixture, with_key(&[]), file, between)
}

/// One line, whatever the width of the screen.
fn joined(ran: &Ran) -> String {
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong with what a command says of a store in which the file of "older" is an old one, or
/// is not.
fn judge(ran: &Ran, old: bool, status_if_whole: i32) -> Option<&'static str> {
    let said = joined(ran);
    if !old {
        return (ran.status != Some(status_if_whole)).then_some("its status where all is whole");
    }
    match () {
        () if ran.status != Some(1) => Some("its status"),
        () if !said.contains("object \"older\"") => Some("it does not name the object"),
        () if !said.contains("put back") => Some("it does not say what is wrong"),
        () if said.contains("object \"beside\" is damaged") => Some("it names another"),
        () => None,
    }
}

#[test]
fn an_older_file_of_an_object_is_told_by_each_command_that_looks() {
    let mut wrong = Vec::new();
    for mode in ["none", "integrity", "both", "authenticated"] {
        let (fixture, key, file, between) = imported(mode);
        let whole = std::fs::read(&file).expect("read");
        let copy = text(&fixture.dir.path().join("backup"));
        let key: Vec<&str> = key.iter().map(String::as_str).collect();
        for old in [true, false] {
            std::fs::write(&file, if old { &between } else { &whole }).expect("written");
            for command in ["adopt", "check", "info", "object ls", "verify", "backup", "dump"] {
                // Keys are for values: without one an older file is found all the same.
                for key in [&key[..], &[]] {
                    let target = if command == "backup" { &[copy.as_str()][..] } else { &[] };
                    let ran = fixture.run(command, &[target, key].concat());
                    let locked = command == "verify"
                        && ["both", "authenticated"].contains(&mode)
                        && key.is_empty();
                    let mut problem = judge(&ran, old, if locked { 3 } else { 0 });
                    if !target.is_empty() {
                        let of_copy = judge(&run(["adopt", &copy]), old, 0);
                        problem = problem.or(of_copy.map(|_| "what `adopt` says of its copy"));
                        std::fs::remove_dir_all(&copy).expect("removed");
                    }
                    let Some(problem) = problem else { continue };
                    let said = format!("{}{}", ran.out, ran.err);
                    let case = format!("{mode}, old: {old}, {command} {key:?}");
                    wrong.push(format!("{case}: {problem}: {:?} {said}", ran.status));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
