//! Every command does what its help says, for people and for programs.

use crate::common::{cenote, empty, killed, run, with_pool};
use cenote::{PoolMode, PoolOptions};
use cenote_testkit::directories;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn format_makes_a_store_and_never_touches_another() {
    let fixture = empty();
    let files = fixture.files();
    fixture.run("format", &[]).complains(3, &["holds a store already", "cenote rm --store"]);
    assert_eq!(fixture.files(), files);

    let other = fixture.dir.path().join("other");
    let other = other.to_str().expect("text");
    let object = run(["format", "-n", other, "--window-size", "64G", "--json"]).exits(0).json();
    assert_eq!(
        (object["dry_run"].as_bool(), object["window_bytes"].as_u64()),
        (Some(true), Some(64 << 30))
    );
    assert!(!std::path::Path::new(other).exists());
    let object = run(["format", "-y", other, "--window-size", "64G", "--json"]).exits(0).json();
    assert_eq!(object["durability"], "process");
    let info = run(["info", other, "--json"]).exits(0).json();
    assert_eq!((&info["store"], info["window_bytes"].as_u64()), (&object["store"], Some(64 << 30)));
}

#[test]
fn format_refuses_a_directory_with_files_and_windows_that_cannot_be() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("letter"), "dear").expect("written");
    let path = dir.path().to_str().expect("text");
    run(["format", path]).complains(3, &["not empty", "letter"]);
    run(["format", path, "-n"]).complains(3, &["not empty", "letter"]);
    run(["format", path, "--window-size", "12"]).exits(2);
    // What cannot be leaves no directory behind.
    let new = dir.path().join("new");
    for care in ["-n", "-y"] {
        run(["format", new.to_str().expect("text"), "--window-size", "3", care])
            .complains(2, &["2 MiB"]);
    }
    run(["format", path, "--window-size", "1X"]).complains(2, &["no size"]);
    let near = run(["format", path, "--window-sise", "1G"])
        .complains(2, &["--window-sise", "; a similar argument exists"]);
    assert!(!near.err.contains("tip:"), "{}", near.err);
    let inside = dir.path().join("no/such/parent");
    run(["format", inside.to_str().expect("text")]).exits(3);
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 1);
}

#[test]
fn chmod_and_chown_change_a_pool_and_say_why_not() {
    let fixture = empty();
    fixture.run("create", &["words"]).exits(0);
    let object = fixture.run("chmod", &["words", "640", "--json"]).exits(0).json();
    assert_eq!(
        (object["pool"].as_str(), object["permissions"].as_str()),
        (Some("words"), Some("640"))
    );
    let object = fixture.run("chown", &["words", "61001:61002", "--json"]).exits(0).json();
    assert_eq!((object["uid"].as_u64(), object["gid"].as_u64()), (Some(61_001), Some(61_002)));
    let object = fixture.run("chown", &["words", ":7", "--json"]).exits(0).json();
    assert_eq!((object["uid"].as_u64(), object["gid"].as_u64()), (Some(61_001), Some(7)));
    assert_eq!(object["permissions"].as_str(), Some("640"), "and nothing else");
    assert!(
        fixture.run("chown", &["words", "root"]).exits(0).out.contains("user 0, group 7, mode 640")
    );
    for wrong in ["888", "7777", "rw"] {
        fixture.run("chmod", &["words", wrong]).complains(2, &["octal"]);
    }
    fixture.run("chown", &["words", ":"]).complains(2, &["alice:staff"]);
    fixture.run("chown", &["words", "no-user-of-that-name"]).complains(2, &["/etc/passwd"]);
    fixture.run("chmod", &["nope", "640"]).complains(3, &["no pool \"nope\""]);
}

#[test]
fn create_makes_pools_and_says_why_not() {
    let fixture = empty();
    let object = fixture
        .run("create", &["words", "--size", "4M", "--size-max", "1G", "--json"])
        .exits(0)
        .json();
    assert_eq!((object["pool"].as_str(), object["bytes"].as_u64()), (Some("words"), Some(4 << 20)));
    let files = fixture.files();
    fixture.run("create", &["dry", "-n"]).exits(0);
    fixture.run("create", &["words", "-n"]).complains(3, &["\"words\" already"]);
    fixture.run("create", &["dry", "-n", "--size", "5"]).exits(3);
    assert_eq!(fixture.files(), files, "a dry run wrote something");
    fixture.run("create", &["words"]).complains(3, &["\"words\" already"]);
    fixture.run("create", &["a", "--size", "5"]).complains(3, &["5 bytes", "4096"]);
    fixture.run("create", &["a", "--size", "4M", "--size-max", "2M"]).exits(3);
    fixture.run("create", &[" a"]).complains(3, &["cannot name a pool"]);
    fixture.run("create", &["a", "--size", "2T"]).exits(3);
    let pools = fixture.run("ls", &["--json"]).exits(0).json_lines();
    assert_eq!(pools.len(), 1);
    assert_eq!(
        (pools[0]["bytes"].as_u64(), pools[0]["bytes_max"].as_u64()),
        (Some(4 << 20), Some(1 << 30))
    );
}

#[test]
fn info_says_what_a_crash_cost_a_pool_in_shadowed_mode() {
    use cenote_layout::header::{read, seal};
    use cenote_layout::superblock::{COPY_SIZE, Superblock};
    use zerocopy::IntoBytes;
    let fixture = empty();
    let made = fixture.run("create", &["plain", "--mode", "direct", "--json"]).exits(0).json();
    assert_eq!(made["mode"], "direct");
    let made = fixture.run("create", &["words", "--mode", "shadowed", "--json"]).exits(0).json();
    assert_eq!(made["mode"], "shadowed");
    fixture.run("create", &["odd", "--mode", "odd"]).complains(2, &["direct or shadowed"]);
    let set = |store: &cenote::Store, value: u64| {
        let pool = store.pool("words").expect("a pool");
        pool.write(|tx| {
            let value = tx.alloc(value)?;
            tx.set_root(value)
        })
        .expect("a transaction");
        pool
    };
    {
        let store = cenote::Store::open(&fixture.store).expect("opened");
        set(&store, 1).psync().expect("durable");
        drop(set(&store, 2));
        store.abandon();
    }
    let info = fixture.run("info", &[]).exits(0).out;
    assert!(info.contains("\"words\" goes on from its last transaction"), "{info}");
    // The machine went down.
    let path = fixture.store.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
        let mut block = read::<Superblock>(copy, true).expect("a superblock");
        block.boot_id.0[0] ^= 1;
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    std::fs::write(&path, bytes).expect("writable");
    let info = fixture.run("info", &[]).exits(0).out;
    assert!(info.contains("\"words\" is as its last psync left it"), "{info}");
    let info = fixture.run("info", &["--json"]).exits(0).json();
    assert_eq!(
        (info["at_last_psync"][0].as_str(), info["crash"].as_str()),
        (Some("words"), Some("power"))
    );
    assert_eq!(info["not_covered"].as_array().map(Vec::len), Some(0));
}

#[test]
fn ls_info_stats_and_dump_tell_of_pools() {
    let fixture = with_pool();
    assert!(fixture.run("ls", &[]).exits(0).out.contains("words"));
    let info = fixture.run("info", &[]).exits(0).out;
    assert!(info.contains("durability   process") && info.contains("closed properly"), "{info}");
    let info = fixture.run("info", &["--json"]).exits(0).json();
    assert_eq!(
        (info["clean"].as_bool(), info["pools"][0]["pool"].as_str()),
        (Some(true), Some("words"))
    );
    let stats = fixture.run("stats", &["words", "--json"]).exits(0).json();
    assert_eq!((stats["blocks"].as_u64(), stats["bytes"].as_u64()), (Some(0), Some(2 << 20)));
    assert!(fixture.run("stats", &[]).exits(0).out.contains("pool \"words\""));
    let kinds: Vec<String> = fixture
        .run("dump", &["--json"])
        .exits(0)
        .json_lines()
        .iter()
        .map(|object| object["kind"].as_str().expect("a kind").to_owned())
        .collect();
    for kind in ["superblock", "catalog", "pool", "puddle"] {
        assert!(kinds.iter().any(|k| k == kind), "{kind} is not in {kinds:?}");
    }
    assert!(fixture.run("dump", &[]).exits(0).out.contains("superblock, copy 1"));
    fixture.run("dump", &["--pool", "words", "--blocks", "--json"]).exits(0);
    fixture.run("dump", &["--blocks"]).complains(2, &["--pool"]);
}

#[test]
fn backup_makes_a_copy_that_is_a_store_and_says_who_copies_one_in_use() {
    let fixture = with_pool();
    let copy = fixture.dir.path().join("copy");
    let copy = copy.to_str().expect("text");
    let object = fixture.run("backup", &[copy, "--json"]).exits(0).json();
    assert_eq!((object["path"].as_str(), object["pools"].as_u64()), (Some(copy), Some(1)));
    assert!(run(["check", copy]).exits(0).out.contains("closed properly"));
    assert_eq!(run(["ls", copy, "--json"]).exits(0).json()["pool"], "words");
    fixture.run("backup", &[copy]).complains(3, &["no backup was made", "is not empty"]);
    run(["create", copy, "more"]).exits(0);

    let medium =
        cenote_medium::RealMedium::open(&fixture.store, &cenote_medium::MediumOptions::default());
    let medium = std::sync::Arc::new(medium.expect("a directory"));
    let store =
        cenote_store::Store::open(medium, cenote_store::OpenOptions::default()).expect("opened").0;
    let second = fixture.dir.path().join("second");
    let second = second.to_str().expect("text");
    fixture.run("backup", &[second]).complains(4, &["is in use by process", "Store::backup"]);
    // `cp -a` of it is no store, and the way to open it all the same is named.
    let hot = fixture.dir.path().join("hot");
    let hot = hot.to_str().expect("text");
    directories::copy(&fixture.store, hot.as_ref());
    run(["check", hot]).complains(4, &["is a copy of a store", "cenote backup"]);
    store.close().expect("closed");
    run(["check", hot]).complains(3, &["a copy of a store that was not closed", "--accept-copy"]);
    let checked = run(["check", hot, "--accept-copy"]).exits(0).out;
    assert!(checked.contains("a copy of a store that was not closed"), "{checked}");
    // Looking at it leaves it what it is; adopting it ends that, for good.
    run(["check", hot]).complains(3, &["cenote adopt"]);
    assert_eq!(run(["adopt", hot, "--json"]).exits(0).json()["adopted"].as_bool(), Some(true));
    run(["check", hot]).exits(0);
    assert!(run(["adopt", hot]).exits(0).out.contains("opens as a store already"));
    fixture.run("backup", &[second]).exits(0);
}

/// A copy with a pool that was written while it was made: it is named, and what is left is adopted
/// when it is removed.
#[test]
fn a_copy_is_adopted_when_what_it_may_have_torn_is_removed() {
    let fixture = with_pool();
    let hot = fixture.dir.path().join("hot");
    let dir = hot.to_str().expect("text").to_owned();
    {
        let store = cenote::Store::open(&fixture.store).expect("opened");
        let options = PoolOptions { mode: PoolMode::Direct, ..PoolOptions::default() };
        let pool = store.create_pool("torn", &options).expect("a pool");
        pool.write(|tx| tx.alloc(7_u64).map(drop)).expect("written");
        directories::copy(&fixture.store, &hot);
        drop(pool);
        store.close().expect("closed");
    }
    run(["ls", &dir]).complains(3, &["cenote adopt"]);
    let said = run(["adopt", &dir]).exits(1).out;
    assert!(said.contains("pool \"torn\"") && !said.contains("pool \"words\""), "{said}");
    assert!(
        said.contains("is still an unchecked copy") && said.contains("--remove-torn"),
        "{said}"
    );
    run(["ls", &dir]).complains(3, &["cenote adopt"]);
    run(["rm", &dir, "torn", "-y", "--accept-copy"]).exits(0);
    run(["adopt", &dir]).exits(0);
    let listed = run(["ls", &dir, "--json"]).exits(0).json();
    assert_eq!(listed["pool"], "words", "{listed}");
    run(["create", &dir, "more"]).exits(0);
}

#[test]
fn an_unknown_pool_is_named_with_those_that_are_there() {
    let fixture = with_pool();
    for (command, arguments) in [
        ("stats", vec!["nope"]),
        ("show", vec!["nope"]),
        ("check", vec!["--pool", "nope"]),
        ("dump", vec!["--pool", "nope"]),
        ("rm", vec!["nope", "-y"]),
    ] {
        fixture.run(command, &arguments).complains(3, &["\"nope\"", "words"]);
    }
}

#[test]
fn rm_removes_what_was_named_and_only_if_a_user_says_yes() {
    let fixture = with_pool();
    fixture.run("create", &["other"]).exits(0);
    let files = fixture.files();
    fixture.run("rm", &["words"]).complains(2, &["\"words\"", "--yes"]);
    fixture.run("rm", &["words", "-n"]).exits(0);
    fixture.run("rm", &["words", "nope", "-y"]).exits(3);
    fixture.run("rm", &["--store"]).complains(2, &["--yes"]);
    fixture.run("rm", &["--store", "-n"]).exits(0);
    fixture.run("rm", &[]).exits(2);
    assert_eq!(fixture.files(), files, "something was changed without a yes");
    let object = fixture.run("rm", &["words", "-y", "--json"]).exits(0).json();
    assert_eq!((object["pool"].as_str(), object["bytes"].as_u64()), (Some("words"), Some(2 << 20)));
    assert_eq!(fixture.run("ls", &["--json"]).exits(0).json()["pool"], "other");
    assert_eq!(std::fs::read_dir(fixture.store.join("puddles")).expect("readable").count(), 1);
}

#[test]
fn spare_puddles_are_shown_and_taken() {
    // Those of a pool in shadowed mode are not kept.
    let fixture = empty();
    fixture.run("create", &["words", "--mode", "direct"]).exits(0);
    let shown = |spares: u64| {
        let object = fixture.run("info", &["--json"]).exits(0).json();
        assert_eq!(object["spare_puddles"].as_u64(), Some(spares), "{object}");
        let object = fixture.run("check", &["--json"]).exits(0).json();
        assert_eq!(object["spare_bytes"].as_u64(), Some(spares * (2 << 20)), "{object}");
        for command in ["ls", "check"] {
            let out = fixture.run(command, &[]).exits(0).out;
            assert_eq!(out.contains("1 spare puddle (2 MiB)"), spares == 1, "{out}");
        }
        let out = fixture.run("info", &[]).exits(0).out;
        assert!(out.contains(&format!("{spares} spare)")), "{out}");
    };
    shown(0);
    let store = cenote::Store::open(&fixture.store).expect("opened");
    store.remove_pool("words").expect("removed");
    store.close().expect("closed");
    shown(1);
    let dump = fixture.run("dump", &["--json"]).exits(0).json_lines();
    assert!(
        dump.iter().any(|object| object["kind"] == "puddle" && object["role"] == "spare"),
        "{dump:?}"
    );
    fixture.run("create", &["again"]).exits(0);
    shown(0);
}

#[test]
fn rm_store_removes_all_of_a_store_and_nothing_else() {
    let fixture = with_pool();
    std::fs::write(fixture.store.join("letter"), "dear").expect("written");
    let ran = fixture.run("rm", &["--store", "-y"]).exits(0);
    assert!(ran.out.contains("other files"), "{}", ran.out);
    let left: Vec<_> = std::fs::read_dir(&fixture.store)
        .expect("readable")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["letter"]);
    fixture.run("rm", &["--store", "-y"]).complains(3, &["is not a store"]);

    let fixture = with_pool();
    fixture.run("rm", &["--store", "-y"]).exits(0);
    assert!(!fixture.store.exists());
}

/// The list of windows is this test's own.
#[test]
fn rm_store_forgets_the_window_of_the_store_and_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("cenote/windows");
    let state = |arguments: &[&str]| {
        let ran = cenote()
            .env("XDG_STATE_HOME", dir.path())
            .args(arguments)
            .output()
            .expect("cenote runs");
        assert!(ran.status.success(), "{ran:?}");
        std::fs::read_to_string(&list).unwrap_or_default()
    };
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (one, two) = (one.to_str().expect("text"), two.to_str().expect("text"));
    let first = state(&["format", one]);
    let both = state(&["format", two]);
    assert_eq!((first.lines().count(), both.lines().count()), (1, 2));
    let left = state(&["rm", one, "--store", "-y"]);
    assert_eq!(format!("{first}{left}"), both);
    assert_eq!(state(&["rm", two, "--store", "-y"]), "");
}

/// Commands and options that messages name, from the sources.
fn advice() -> BTreeSet<Vec<String>> {
    fn look(at: &Path, found: &mut BTreeSet<Vec<String>>) {
        for entry in std::fs::read_dir(at).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                look(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            // A literal may go on in the next line.
            let text = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let text = text.map(|line| line.trim().trim_end_matches('\\')).collect::<String>();
            assert!(
                !text.contains("from a copy"),
                "{}: one file of a copy mends nothing",
                path.display()
            );
            for advice in text.split("`cenote ").skip(1) {
                let words = advice.split('`').next().unwrap_or_default().split_whitespace();
                let is_word = |word: &&str| {
                    word.starts_with("--")
                        || word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                };
                found.insert(words.filter(is_word).map(str::to_owned).collect());
            }
        }
    }
    let mut found = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let hidden = ["adversary", "bench", "crashtest", "fuzz", "hostile-macros"];
    for entry in std::fs::read_dir(crates).expect("readable").flatten() {
        let name = entry.file_name().into_string().expect("text");
        if !hidden.iter().any(|hidden| name == format!("cenote-{hidden}")) {
            look(&entry.path().join("src"), &mut found);
        }
    }
    found
}

#[test]
fn advice_in_messages_names_commands_and_options_that_there_are() {
    let advice = advice();
    assert!(advice.len() > 20, "the sources were not found: {advice:?}");
    for words in advice {
        let (options, commands): (Vec<&String>, Vec<&String>) =
            words.iter().partition(|word| word.starts_with("--"));
        if commands.is_empty() || options.iter().any(|option| *option == "--help") {
            continue;
        }
        let mut arguments: Vec<&str> = commands.iter().map(|word| word.as_str()).collect();
        arguments.push("--help");
        let help = run(&arguments).exits(0).out;
        let missing = options.iter().find(|option| !help.contains(option.as_str()));
        assert!(missing.is_none(), "{words:?}: {missing:?} is not in {help}");
    }
}

#[test]
fn doctor_says_what_a_directory_gives() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let text = run(["doctor", path]).exits(0).out;
    for word in [
        "file system",
        "DAX",
        "durability",
        "flush",
        "userfaultfd",
        "PAGEMAP_SCAN",
        "protection keys",
        "safe metadata",
        "huge pages",
        "open files",
    ] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let object = run(["doctor", path, "--json"]).exits(0).json();
    assert!(object["durability"].is_string() && object["userfaultfd"]["available"].is_boolean());
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("readable").count(),
        0,
        "doctor left something behind"
    );
    run(["doctor", "/no/such/directory"]).complains(3, &["/no/such/directory"]);
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(["completions", shell]).exits(0).out;
        assert!(script.contains("cenote") && script.contains("doctor"), "{shell}");
        assert!(!script.contains("__tour-build"), "{shell} offers what is not for users");
    }
    run(["completions", "tcsh"]).complains(2, &["tcsh"]);
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man");
    let object = run(["man", pages.to_str().expect("text"), "--json"]).exits(0).json();
    assert!(object["pages"].as_array().is_some_and(|pages| pages.len() == 44), "{object}");
    let page = std::fs::read_to_string(pages.join("cenote-rm.1")).expect("a page");
    assert!(page.contains(".TH") && page.contains("Exit status"), "{page}");
    assert!(!pages.join("cenote-__tour-build.1").exists());
    std::fs::write(dir.path().join("file"), "").expect("written");
    run(["man", dir.path().join("file/x").to_str().expect("text")])
        .complains(3, &["cannot write manual pages"]);
}

#[test]
fn reclaim_gives_back_what_nothing_leads_to() {
    let fixture = with_pool();
    {
        let store = cenote::Store::open(&fixture.store).expect("a store");
        let pool = store.pool("words").expect("a pool");
        let made = pool.write(|tx| -> cenote::Result<()> {
            let kept = tx.alloc(7u64)?;
            tx.set_root(kept)?;
            for value in 0..9u64 {
                tx.alloc(value)?;
            }
            Ok(())
        });
        made.expect("written");
    }
    fixture.run("check", &[]).exits(1);
    let files = fixture.files();
    let would = fixture.run("reclaim", &["-n"]).exits(0).out;
    assert!(would.contains("would free 9 blocks (144 B)") && would.contains("u64"), "{would}");
    assert_eq!(would.matches("0x").count(), 9, "each is named: {would}");
    assert_eq!(fixture.files(), files, "a dry run wrote something");
    let object = fixture.run("reclaim", &["words", "--json"]).exits(0).json();
    assert_eq!((object["blocks"].as_u64(), object["bytes"].as_u64()), (Some(9), Some(144)));
    assert_eq!(object["types"][0]["blocks"], 9);
    fixture.run("check", &[]).exits(0);
    assert!(fixture.run("reclaim", &[]).exits(0).out.contains("no leaks"));
    fixture.run("reclaim", &["nope"]).complains(3, &["\"nope\""]);
}

#[test]
fn a_heap_is_drawn_within_80_columns_and_adds_up() {
    let fixture = killed();
    let files = fixture.files();
    let text = fixture.run("info", &["--heap", "tour"]).exits(0).out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for part in ["pool \"tour\"", "allocated", "metadata", "TYPE", "largest run", "tour::", "#"] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let heap = fixture.run("info", &["--heap", "tour", "--json"]).exits(0).json();
    let bytes = |key: &str| heap[key].as_u64().expect(key);
    let parts = ["allocated", "free_block", "end", "metadata", "free", "hole", "damaged"];
    let sum: u64 = parts.iter().map(|part| bytes(&format!("{part}_bytes"))).sum();
    assert_eq!(sum, bytes("bytes"));
    assert_eq!(bytes("superblocks") * 65_536, bytes("bytes"));
    assert_eq!(heap["map"].as_str().expect("map").chars().count() as u64, bytes("superblocks"));
    let stats = fixture.run("stats", &["tour", "--json"]).exits(0).json();
    let blocks: u64 = heap["kinds"]
        .as_array()
        .expect("kinds")
        .iter()
        .map(|k| k["blocks"].as_u64().unwrap())
        .sum();
    assert_eq!(
        (Some(bytes("allocated_bytes")), Some(blocks)),
        (stats["block_bytes"].as_u64(), stats["blocks"].as_u64())
    );
    assert!(bytes("largest_free_bytes") <= bytes("free_bytes"));
    fixture.run("info", &["--heap", "absent"]).complains(3, &["no pool \"absent\"", "tour"]);
    assert_eq!(fixture.files(), files, "looking has changed something");
}

#[test]
fn a_pool_is_copied_and_moved_and_holds_what_it_held() {
    let fixture = killed();
    let stats =
        |pool: &str| fixture.run("stats", &[pool, "--json"]).exits(0).json()["blocks"].clone();
    let before = stats("tour");
    let files = fixture.files();
    fixture.run("clone", &["absent", "copy"]).complains(3, &["\"absent\""]);
    assert_eq!(fixture.files(), files, "a pool that is not there changes nothing");
    let copy = fixture.run("clone", &["tour", "copy", "--json"]).exits(0).json();
    assert_eq!((&copy["pool"], &copy["from"]), (&"copy".into(), &"tour".into()));
    let pending = copy["due_puddles"].as_u64().expect("a number");
    assert!(pending > 0);
    let listed = || -> u64 {
        let pools = fixture.run("ls", &["--json"]).exits(0).json_lines();
        pools.iter().map(|pool| pool["due_puddles"].as_u64().expect("a number")).sum()
    };
    assert_eq!(listed(), pending, "looking writes nothing");
    assert_eq!(stats("copy"), before);
    fixture.run("clone", &["tour", "copy"]).complains(3, &["\"copy\""]);
    let done = fixture.run("relocate", &["copy", "--json"]).exits(0).json();
    assert!(done["rewritten"]["native"].as_u64().expect("a number") > 10, "{done:?}");
    assert_eq!(listed(), 0);
    let moved = fixture.run("randomize", &["copy", "--eager", "--json"]).exits(0).json();
    assert!(moved["rewritten"]["native"].as_u64().expect("a number") > 10, "{moved:?}");
    assert_eq!((listed(), stats("copy"), stats("tour")), (0, before.clone(), before));
    fixture.run("check", &[]).exits(0);
}

#[test]
fn trim_gives_free_space_back_and_says_how_much() {
    let fixture = killed();
    fixture.run("create", &["big", "--size", "64M"]).exits(0);
    let words = |fixture: &crate::common::Fixture| {
        fixture.run("stats", &["tour", "--json"]).exits(0).json()["blocks"].clone()
    };
    let before = words(&fixture);
    let files = fixture.files();
    let would = fixture.run("trim", &["big", "-n", "--json"]).exits(0).json();
    assert_eq!(would["dry_run"], true);
    assert!(fixture.run("trim", &["-n"]).exits(0).out.contains("pool \"tour\""));
    fixture.run("trim", &["absent"]).complains(3, &["no pool \"absent\""]);
    assert_eq!(fixture.files(), files, "a dry run wrote something");
    let done = fixture.run("trim", &["big", "--json"]).exits(0).json();
    if done["supported"] == false {
        println!("skipped: this file system cannot take part of a file back");
        return;
    }
    assert_eq!(done["released_bytes"], would["released_bytes"]);
    // Of 64 MiB, metadata takes 5: places of marks that nothing has taken are holes from the
    // beginning.
    assert!(done["released_bytes"].as_u64().expect("a number") > 58 << 20);
    let again = fixture.run("trim", &["--json"]).exits(0).json_lines();
    assert_eq!(again[0]["pool"], "big");
    assert_eq!(
        (again[0]["released_bytes"].as_u64(), &again[0]["hole_bytes"]),
        (Some(0), &done["released_bytes"])
    );
    assert_eq!(
        fixture.run("info", &["--heap", "big", "--json"]).exits(0).json()["hole_bytes"],
        done["released_bytes"]
    );
    fixture.run("check", &["--threads", "1"]).exits(0);
    fixture.run("check", &["--threads", "0"]).complains(2, &["--threads"]);
    assert_eq!(words(&fixture), before);
}
