//! `cenote export` and `cenote import`: pools in files and through pipes, and what is left when
//! a user stops them.

#[path = "../../cenote/tests/support/mounted.rs"]
mod mounted;

use crate::common::{Fixture, cenote, empty, killed, run};
use cenote_testkit::ended::wait_within;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn puddles(fixture: &Fixture) -> usize {
    std::fs::read_dir(fixture.store.join("puddles")).expect("readable").count()
}

#[test]
fn pools_go_by_a_file_to_another_store_and_beside_the_original() {
    // Its writer was killed: it is recovered first.
    let (from, to) = (killed(), empty());
    let archive = from.dir.path().join("tour.cenote");
    let archive = text(&archive);
    let done = from.run("export", &["tour", archive, "--json"]).exits(0).json();
    assert_eq!((done["pools"][0].as_str(), done["zstd"].as_bool()), (Some("tour"), Some(false)));
    assert_eq!(
        done["archive_bytes"].as_u64(),
        std::fs::metadata(archive).ok().map(|file| file.len())
    );
    assert_eq!(done["left"].as_array().map(Vec::len), Some(0));
    from.run("export", &["tour", archive]).complains(3, &["is there already"]);
    from.run("export", &["other", "new"]).complains(3, &["\"other\""]);
    from.run("export", &["tour"]).complains(2, &["required"]);
    from.run("export", &["tour", "-", "--json"]).complains(2, &["as JSON"]);

    let before = to.files();
    let seen = to.run("import", &[archive, "-n", "--json"]).exits(0).json();
    assert_eq!((seen["pool"].as_str(), seen["taken"].as_bool()), (Some("tour"), Some(false)));
    assert_eq!(to.files(), before, "looking wrote something");
    let made = to.run("import", &[archive, "--eager", "--json"]).exits(0).json_lines();
    assert_eq!(made[0]["was"].as_str(), Some("tour"));
    to.run("import", &[archive]).complains(3, &["\"tour\""]);
    to.run("import", &[archive, "--as", "a", "--as", "b"])
        .complains(3, &["1 pool (", "2 names are given"]);
    to.run("import", &[archive, "--as", "copy"]).exits(0);
    let taken = to.run("import", &[archive, "-n"]).complains(3, &["\"tour\""]);
    assert!(
        taken.out.contains("name is taken"),
        "what is in it is said all the same: {}",
        taken.out
    );
    to.run("import", &[archive, "-n", "--as", "a", "--as", "b"])
        .complains(3, &["2 names are given"]);
    // The copy that was not rewritten is told of, in words too.
    for command in ["ls", "info", "check"] {
        let out = to.run(command, &[]).out;
        assert!(
            out.contains("of pool \"copy\" are still to be rewritten")
                || out.contains("of pool \"copy\" is still"),
            "{command}: {out}"
        );
        assert!(!out.contains("of pool \"tour\""), "{command}: {out}");
    }
    let check = to.run("check", &["--all"]);
    assert_eq!(check.status, from.run("check", &["--all"]).status, "{}{}", check.out, check.err);
    let count = |fixture: &Fixture, pool: &str| {
        let lines = fixture.run("stats", &[pool, "--json"]).exits(0).json_lines();
        lines
            .iter()
            .find(|line| line["pool"].as_str() == Some(pool))
            .map(|line| line["blocks"].clone())
    };
    assert_eq!(count(&to, "tour"), count(&from, "tour"));
    assert_eq!(count(&to, "copy"), count(&from, "tour"));
    // What is no archive.
    let odd = from.dir.path().join("odd");
    std::fs::write(&odd, "dear").expect("written");
    to.run("import", &[text(&odd)]).complains(3, &["cut short", text(&odd)]);
    to.run("import", &[text(&odd), "-n"]).complains(3, &["cut short", text(&odd)]);
    let missing = from.dir.path().join("missing/archive");
    from.run("export", &["tour", text(&missing)])
        .complains(3, &["no directory", "missing:", "make it first"]);
    to.run("import", &["nowhere"]).complains(3, &["nowhere"]);
}

#[test]
fn pools_go_through_a_pipe_packed() {
    let (from, to) = (killed(), empty());
    let mut export = cenote()
        .args(["export", text(&from.store), "tour", "-", "--zstd"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("cenote runs");
    let stdout = export.stdout.take().expect("piped");
    let import = cenote()
        .args(["import", text(&to.store), "-"])
        .stdin(stdout)
        .output()
        .expect("cenote runs");
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    assert!(export.wait().expect("it ends").success());
    to.run("check", &[]).exits(from.run("check", &[]).status.expect("it ends"));
}

/// Everything below a directory, by its path from there.
fn everything(dir: &Path) -> std::collections::BTreeSet<std::path::PathBuf> {
    let mut found = std::collections::BTreeSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).expect("readable").flatten() {
            let path = entry.path();
            if entry.file_type().expect("a type").is_dir() {
                left.push(path.clone());
            }
            found.insert(path.strip_prefix(dir).expect("below it").to_owned());
        }
    }
    found
}

/// The name of a pool is in the catalog, and in no path: one that looks like a way out of the store
/// leads nowhere, be it from an archive or from `--as`.
#[test]
fn a_name_that_looks_like_a_path_makes_no_file_outside_the_store() {
    const NAMES: [&str; 3] = ["../../x", "/tmp/../x", "puddles/x"];
    let (from, to) = (empty(), empty());
    let archive = from.dir.path().join("archive");
    for (number, name) in NAMES.into_iter().enumerate() {
        from.run("create", &[name]).exits(0);
        let archive = archive.with_extension(number.to_string());
        from.run("export", &[name, text(&archive)]).exits(0);
        let outside = |fixture: &Fixture| {
            let all = everything(fixture.dir.path());
            all.into_iter().filter(|path| !path.starts_with("store")).collect::<Vec<_>>()
        };
        let (before, parent) = (outside(&to), everything(from.dir.path()));
        // By what the archive says, and by what the caller says.
        to.run("import", &[text(&archive)]).exits(0);
        let other = format!("{name} again");
        to.run("import", &[text(&archive), "--as", &other, "--eager"]).exits(0);
        let pools = to.run("ls", &["--json"]).exits(0).json_lines();
        let found = |name: &str| pools.iter().any(|pool| pool["pool"].as_str() == Some(name));
        assert!(found(name) && found(&other), "{pools:?}");
        assert_eq!(outside(&to), before, "{name}");
        assert_eq!(everything(from.dir.path()), parent, "{name}");
        // Nor does a file inside have the name of a pool.
        for path in everything(&to.store) {
            let known = [
                "superblock",
                "catalog.0",
                "catalog.1",
                "journal.pools",
                "lock",
                "primary",
                "puddles",
            ];
            let file = path.file_name().and_then(|name| name.to_str()).expect("text");
            let number = file.len() == 32 && file.chars().all(|c| c.is_ascii_hexdigit());
            assert!(number || known.contains(&file), "{name}: {path:?}");
        }
        to.run("rm", &[name, &other, "-y"]).exits(0);
    }
    for (name, why) in [("", "empty"), ("a\n../x", "control"), ("../x ", "space")] {
        let archive = archive.with_extension("0");
        to.run("import", &[text(&archive), "--as", name]).complains(3, &[why]);
    }
    to.run("check", &["--all"]).exits(0);
}

/// Sends a signal to a child.
fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn an_import_that_is_stopped_or_killed_leaves_nothing() {
    let (from, to) = (killed(), empty());
    let archive = from.dir.path().join("tour.cenote");
    from.run("export", &["tour", text(&archive)]).exits(0);
    let bytes = std::fs::read(&archive).expect("readable");
    let nothing = puddles(&to);
    for stop in [&["-INT", "-INT"][..], &["-KILL"]] {
        let mut import = cenote()
            .args(["import", text(&to.store), "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("cenote runs");
        let mut stdin = import.stdin.take().expect("piped");
        stdin.write_all(&bytes[..bytes.len() - 100]).expect("it reads");
        let begun = Instant::now();
        while puddles(&to) == nothing {
            assert!(begun.elapsed() < Duration::from_secs(60), "no file was made");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The first of two asks; as nothing more comes, the second does not.
        for name in stop {
            signal(&import, name);
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = import.wait().expect("it ends");
        assert_eq!(status.code(), (stop.len() == 2).then_some(130));
        assert!(to.run("ls", &["--json"]).exits(0).json_lines().is_empty());
        // The next who writes cleans up.
        to.run("create", &["other"]).exits(0);
        to.run("rm", &["other", "-y"]).exits(0);
        assert_eq!(puddles(&to), nothing);
    }
    run(["import", text(&to.store), text(&archive)]).exits(0);
}

#[test]
fn one_signal_ends_an_export_that_no_program_reads() {
    let from = killed();
    let mut export = cenote()
        .args(["export", text(&from.store), "tour", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("cenote runs");
    let mut stdout = export.stdout.take().expect("piped");
    // It has begun. From here on no program reads, and the pipe fills up.
    let mut first = [0; 1];
    std::io::Read::read_exact(&mut stdout, &mut first).expect("an archive begins");
    std::thread::sleep(Duration::from_millis(300));
    assert!(export.try_wait().expect("known").is_none(), "it waits for a reader");
    signal(&export, "-INT");
    let ended = wait_within(&mut export, Duration::from_secs(60)).expect("known");
    let status = ended.expect("one signal is enough");
    assert_eq!(status.code(), Some(130));
    from.run("export", &["tour", text(&from.dir.path().join("later"))]).exits(0);
}

#[test]
fn what_shares_blocks_says_so_and_what_cannot_says_that_it_copied() {
    let shares = |dir: &Path, sharing: bool| {
        let store = dir.join("store");
        let store = text(&store);
        run(["tour", "--store", store, "--kills", "1"]).exits(0);
        let cloned = run(["clone", store, "tour", "copy", "--reflink"]).exits(0);
        let says = if sharing {
            "shares the original's blocks"
        } else {
            "copied, because blocks cannot be shared"
        };
        assert!(cloned.out.contains(says), "{}", cloned.out);
        let made = run(["clone", store, "tour", "again", "--reflink", "--json", "--eager"])
            .exits(0)
            .json();
        assert_eq!(made["reflink"].as_bool(), Some(sharing), "{made}");
        let made = run(["clone", store, "tour", "third", "--json"]).exits(0).json();
        assert_eq!(
            made["reflink"].as_bool(),
            Some(false),
            "copied, because no option asked for another way"
        );
        let blocks = |pool: &str| {
            let lines = run(["stats", store, pool, "--json"]).exits(0).json_lines();
            lines
                .iter()
                .find(|line| line["pool"].as_str() == Some(pool))
                .map(|line| line["blocks"].clone())
        };
        assert!(
            blocks("tour").is_some()
                && blocks("copy") == blocks("tour")
                && blocks("again") == blocks("tour")
        );
        // Objects: their snapshots, and what comes of them.
        let (bytes, out, snapshot) = (dir.join("bytes"), dir.join("out"), dir.join("a.snapshot"));
        std::fs::write(&bytes, vec![7; 3 << 20]).expect("written");
        run(["object", "create", store, "a", "--size", "3M"]).exits(0);
        run(["object", "import", store, "a", "--input", text(&bytes)]).exits(0);
        let taken = run(["snapshot", store, "a", text(&snapshot)]).exits(0);
        let says = if sharing {
            "shares the object's blocks"
        } else {
            "copied, because blocks cannot be shared"
        };
        assert!(taken.out.contains(says), "{}", taken.out);
        // What comes into the object later is not in its snapshot.
        std::fs::write(&bytes, vec![8; 3 << 20]).expect("written");
        run(["object", "import", store, "a", "--input", text(&bytes)]).exits(0);
        run(["restore", store, text(&snapshot), "--as", "b"]).exits(0);
        run(["object", "export", store, "b", "--output", text(&out)]).exits(0);
        assert!(std::fs::read(&out).expect("read") == vec![7; 3 << 20]);
        run(["check", store, "--all"]).exits(0);
    };
    match mounted::Mounted::sharing(600 << 20) {
        Ok(place) => shares(place.path(), true),
        Err(reason) => println!("skipped: {reason}"),
    }
    match mounted::Mounted::memory("600m") {
        Ok(place) => shares(place.path(), false),
        Err(reason) => println!("skipped: {reason}"),
    }
}
