//! The tour ends as it promises, can be stopped and gone on with, and notices what is not
//! identical.

use crate::common::{cenote, killed, run};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Temporary stores of tours that this machine has.
fn temporary() -> usize {
    std::fs::read_dir("/dev/shm").map_or(0, |dir| {
        dir.flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("cenote-tour-"))
            .count()
    })
}

#[test]
fn a_tour_with_kills_ends_identical() {
    let ran = run(["tour", "--kills", "12", "--seed", "1"]).exits(0);
    let last = ran.out.lines().last().expect("a last line");
    let words: Vec<&str> = last.split(' ').collect();
    assert_eq!(
        (words[0], words[2], words[4], words[5]),
        ("tour:", "words,", "kills,", "identical"),
        "{last}"
    );
    assert!(words[1].parse::<u64>().is_ok_and(|n| n >= 20_000), "{last}");
    assert_eq!(words[3], "12", "{last}");
    assert!(ran.out.contains("recovery") && ran.out.contains("cenote-recover"), "{}", ran.out);
}

#[test]
fn a_tour_of_given_files_tells_programs_what_happened() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("text");
    let text: String = (0..30_000).map(|i| format!("Wort{} und ", i % 613)).collect();
    std::fs::write(&file, text).expect("written");
    let store = dir.path().join("store");
    let arguments =
        ["tour", file.to_str().expect("text"), "--store", store.to_str().expect("text"), "--json"];
    let object = run(arguments.into_iter().chain(["--kills", "10"])).exits(0).json();
    assert_eq!(
        (object["identical"].as_bool(), object["words"].as_u64()),
        (Some(true), Some(60_000))
    );
    assert_eq!(
        (object["entries"].as_u64(), object["difference_count"].as_u64()),
        (Some(614), Some(0))
    );
    assert!(
        object["recoveries"].as_u64() >= object["kills"].as_u64().map(|kills| kills / 2),
        "{object}"
    );
    // The store is there, and as it should be; a further tour finds nothing to do.
    run(["check", store.to_str().expect("text")]).exits(0);
    let again = run(arguments).exits(0).json();
    assert_eq!(
        (again["words_indexed"].as_u64(), again["identical"].as_bool()),
        (Some(0), Some(true))
    );
    // Of another text it does not make a mixture.
    std::fs::write(&file, "something else").expect("written");
    run(arguments).complains(3, &["another text", "cenote rm"]);
}

#[test]
fn a_tour_says_what_differs() {
    use cenote::{Persist, Reader as _, Store};
    use cenote_collections::{BTreeMap, InlineStr, List};
    // The root as the tour writes it: the same name, the same fields.
    #[derive(Persist)]
    #[persist(name = "tour::Progress")]
    struct Progress {
        text: u64,
        next: u64,
        words: BTreeMap<InlineStr<39>, List<u64>>,
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (file, store) = (dir.path().join("text"), dir.path().join("store"));
    std::fs::write(&file, "a rose is a rose").expect("written");
    let arguments =
        ["tour", file.to_str().expect("text"), "--store", store.to_str().expect("text")];
    run(arguments.into_iter().chain(["--kills", "0"])).exits(0);
    // First a position that is another one, then a word that is not there.
    for (removed, says) in
        [(false, "\"rose\" has 2 positions"), (true, "\"rose\" is missing at the end")]
    {
        let store = Store::open(&store).expect("opened");
        let pool = store.pool("tour").expect("a pool");
        pool.write(|tx| -> cenote::Result<()> {
            let root = tx.root::<Progress>()?.expect("a root");
            let words = tx.get(root)?.words;
            let positions = *words.get(tx, "rose")?.expect("a word of the text");
            *positions.front_mut(tx)?.expect("a position") += 100;
            if removed {
                positions.destroy(tx)?;
                words.remove(tx, "rose")?.expect("a word of the text");
            }
            Ok(())
        })
        .expect("committed");
        drop(pool);
        store.close().expect("closed");
        let ran = run(arguments).exits(1);
        assert!(ran.out.contains("different:") && ran.out.contains(says), "{}", ran.out);
        assert!(ran.out.ends_with("1 differences\n"), "{}", ran.out);
    }
}

/// The tour in a directory of its own, beside a `cenote-recover` that brings an older state of the
/// store back.
#[test]
fn a_tour_ends_with_an_error_if_a_commit_is_lost() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let here = |name: &str| dir.path().join(name);
    let program = Path::new(env!("CARGO_BIN_EXE_cenote"));
    std::fs::copy(program, here("cenote")).expect("copied");
    // The first time it keeps a copy of the store; some kills later it writes the copy's contents
    // into the store's files, and removes files that the copy lacks: puddles that the pool got in
    // between. (Files of the copy itself would be recognised, by their inodes.)
    let script = r#"#!/bin/sh
for store; do :; done
old="$(dirname "$0")/old"
if [ ! -d "$old" ]; then cp -r "$store" "$old.new" && mv "$old.new" "$old"
elif [ ! -e "$old.done" ] && echo >>"$old.count" && [ "$(wc -l <"$old.count")" -ge 8 ]; then
    cp -r "$old/." "$store" && : >"$old.done"
    (cd "$store" && find . -type f) | while read -r file; do
        [ -e "$old/$file" ] || rm "$store/$file"
    done
fi
exec "$(dirname "$0")/real" "$@"
"#;
    std::fs::write(here("cenote-recover"), script).expect("written");
    std::fs::set_permissions(here("cenote-recover"), std::fs::Permissions::from_mode(0o755))
        .expect("mode");
    std::fs::copy(crate::common::recover(), here("real")).expect("copied");
    let text: String = (0..200_000_u64).map(|i| format!("w{} ", i * 7919 % 5003)).collect();
    std::fs::write(here("text"), text).expect("written");
    let output = std::process::Command::new(here("cenote"))
        .args(["tour", "--batch", "10", "--kills", "12", "--seed", "5", "--store"])
        .args([here("store"), here("text")])
        .env_remove("CARGO")
        .stdin(Stdio::null())
        .output()
        .expect("a tour");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(here("old.done").exists(), "no old state was brought back: {err}");
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(
        err.contains("a commit was lost: ") && err.contains("are there after recovery"),
        "{err}"
    );
}

#[test]
fn bad_files_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, " ... ").expect("written");
    run(["tour", "/no/such/file"]).complains(3, &["/no/such/file"]);
    run(["tour", dir.path().to_str().expect("text")]).complains(3, &["cannot read"]);
    run(["tour", empty.to_str().expect("text")]).complains(3, &["no word"]);
    run(["tour", "--batch", "0"]).exits(2);
    let inside = dir.path().join("no/parent");
    run(["tour", "--store", inside.to_str().expect("text")]).exits(3);
}

#[test]
fn the_smallest_text_and_the_largest_batch_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("text");
    std::fs::write(&file, "word").expect("written");
    let path = file.to_str().expect("text");
    let ran = run(["tour", path, "--kills", "3", "--batch", "100000"]).exits(0);
    assert!(ran.out.contains("tour: 1 words, "), "{}", ran.out);
}

#[test]
fn ctrl_c_leaves_a_store_that_another_tour_goes_on_with() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, store) = (dir.path().join("text"), dir.path().join("store"));
    let text: String = (0..400_000_u64).map(|i| format!("w{} ", i * 7919 % 5003)).collect();
    std::fs::write(&file, text).expect("written");
    let arguments =
        ["tour", file.to_str().expect("text"), "--store", store.to_str().expect("text")];
    let mut child = cenote()
        .args(arguments)
        .args(["--batch", "1", "--kills", "20"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a tour");
    // The pool has grown once: words have been committed, however slow the machine is.
    wait_for_puddles(&mut child, &store, 4);
    interrupt(child.id());
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    // What it says goes on is the whole command.
    let again = format!("`cenote tour --store {} {}` goes on", store.display(), file.display());
    assert!(err.lines().count() == 1 && err.contains("is whole") && err.contains(&again), "{err}");
    run(["check", store.to_str().expect("text")]).exits(0);
    let object = run(arguments.into_iter().chain(["--kills", "0", "--json"])).exits(0).json();
    assert_eq!(object["identical"].as_bool(), Some(true));
    assert!(object["words_indexed"].as_u64() < Some(400_000), "it has begun anew: {object}");
}

/// What a terminal does: the signal goes to tour, builder and recovery at once.
#[test]
fn ctrl_c_to_the_whole_group_leaves_a_usable_store_at_any_moment() {
    use std::os::unix::process::CommandExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("text");
    let text: String = (0..400_000_u64).map(|i| format!("w{} ", i * 7919 % 5003)).collect();
    std::fs::write(&file, text).expect("written");
    for (number, delay_ms) in [0, 7, 40, 150].into_iter().enumerate() {
        let store = dir.path().join(format!("store{number}"));
        let mut child = cenote()
            .args(["tour", file.to_str().expect("text"), "--store", store.to_str().expect("text")])
            .args(["--batch", "1", "--kills", "400"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a tour");
        wait_for_log(&mut child, &store);
        std::thread::sleep(Duration::from_millis(delay_ms));
        let group = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process_group(group, rustix::process::Signal::INT).expect("sent");
        let output = child.wait_with_output().expect("it ends");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{err}");
        assert!(err.lines().count() == 1 && err.contains("stopped after"), "{err}");
        let store = store.to_str().expect("text");
        run(["check", store, "--wait", "10"]).exits(0);
        run(["tour", file.to_str().expect("text"), "--store", store, "--kills", "0"]).exits(0);
    }
}

#[test]
fn ctrl_c_removes_a_temporary_store() {
    if !Path::new("/dev/shm").is_dir() {
        println!("skipped: there is no /dev/shm here");
        return;
    }
    let mut child = cenote()
        .args(["tour", "--batch", "1", "--kills", "100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a tour");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let store = loop {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        if let Some(place) = line.strip_prefix("store") {
            break place.trim().split(' ').next().expect("a path").to_owned();
        }
        assert!(!line.is_empty(), "the tour ended");
    };
    wait_for(&mut child, &Path::new(&store).join("superblock"));
    interrupt(child.id());
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut err)
        .expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{err}");
    assert!(!Path::new(&store).exists(), "{store} is still there, of {}", temporary());
}

#[test]
fn a_builder_dies_with_its_tour() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, store) = (dir.path().join("text"), dir.path().join("store"));
    let text: String = (0..500_000_u64).map(|i| format!("w{} ", i * 7919 % 100_003)).collect();
    std::fs::write(&file, text).expect("written");
    let mut child = cenote()
        .args(["tour", "--batch", "1", "--kills", "0", "--store"])
        .arg(&store)
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a tour");
    wait_for_log(&mut child, &store);
    child.kill().expect("killed");
    child.wait().expect("reaped");
    // Soon no process has the store open: the lock is free, and recovery works.
    let object =
        run(["info", store.to_str().expect("text"), "--wait", "10", "--json"]).exits(0).json();
    assert_eq!(
        object["clean"].as_bool(),
        Some(false),
        "the builder came to the end before it was killed"
    );
}

#[test]
fn the_hidden_builder_is_not_for_users() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    run([
        "__tour-build",
        "--store",
        store.to_str().expect("text"),
        "--batch",
        "1",
        "--parent",
        "1",
    ])
    .complains(3, &["cenote tour"]);
    assert!(!store.exists());
}

#[test]
fn a_killed_builder_has_not_lost_what_it_acknowledged() {
    // 20 transactions of 50 words were acknowledged, counting the first message.
    let fixture = killed();
    let blocks = fixture.run("dump", &["--pool", "tour", "--json"]).exits(0).json_lines();
    assert!(blocks.iter().any(|object| object["kind"] == "root"));
    fixture.run("check", &[]).exits(0);
}

fn wait_for(child: &mut std::process::Child, path: &Path) {
    wait_until(child, &path.display().to_string(), || path.exists());
}

/// A heap puddle, a log space and a log: the index is being built.
fn wait_for_log(child: &mut std::process::Child, store: &Path) {
    wait_for_puddles(child, store, 3);
}

fn wait_for_puddles(child: &mut std::process::Child, store: &Path, count: usize) {
    wait_until(child, "a puddle", || {
        std::fs::read_dir(store.join("puddles")).is_ok_and(|puddles| puddles.count() >= count)
    });
}

fn wait_until(child: &mut std::process::Child, what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !there() {
        assert!(Instant::now() < end, "{what} does not appear");
        assert!(child.try_wait().expect("asked").is_none(), "the tour ended before it was stopped");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// As a terminal does, but to the tour alone.
fn interrupt(pid: u32) {
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(pid).expect("a number")).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
}
