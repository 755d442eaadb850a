//! `cenote object` does what its help says, for people and for programs.

use crate::common::{Fixture, Ran, empty};
use serde_json::Value;
use std::path::Path;

#[test]
fn objects_are_made_filled_shown_and_removed() {
    let fixture = empty();
    fixture.run("object", &[]).exits(2);
    let dir = fixture.store.to_str().expect("text").to_owned();
    let object = |arguments: &[&str]| {
        let mut all = vec!["object", arguments[0], dir.as_str()];
        all.extend(&arguments[1..]);
        crate::common::run(all)
    };
    let made =
        object(&["create", "matrix", "--size", "3M", "--mode", "640", "--json"]).exits(0).json();
    assert_eq!((made["object"].as_str(), made["bytes"].as_u64()), (Some("matrix"), Some(3 << 20)));
    assert_eq!((made["state"].as_str(), made["permissions"].as_str()), (Some("D"), Some("640")));
    object(&["create", "matrix", "--size", "1M"]).complains(3, &["\"matrix\" already"]);
    object(&["create", "none", "--size", "0"]).complains(3, &["0 bytes"]);
    object(&["create", "huge", "--size", "2T"]).complains(3, &["do not fit"]);
    object(&["create", "odd", "--size", "1M", "--mode", "9"]).complains(2, &["no mode"]);

    let bytes: Vec<u8> = (0..2_500_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let (input, output) = (fixture.dir.path().join("in"), fixture.dir.path().join("out"));
    std::fs::write(&input, &bytes).expect("written");
    let (input, output) = (input.to_str().expect("text"), output.to_str().expect("text"));
    let done =
        object(&["import", "matrix", "--input", input, "--every", "1M", "--json"]).exits(0).json();
    assert_eq!((done["bytes"].as_u64(), done["psyncs"].as_u64()), (Some(2_500_000), Some(3)));
    object(&["export", "matrix", "--output", output, "--len", "2500000"]).exits(0);
    assert!(std::fs::read(output).expect("read") == bytes);
    object(&["export", "matrix", "--output", output]).complains(3, &["exist"]);
    // Again: nothing has changed, so nothing is written.
    let done = object(&["import", "matrix", "--input", input, "--json"]).exits(0).json();
    assert_eq!((done["pages"].as_u64(), done["psyncs"].as_u64()), (Some(0), Some(0)));
    object(&["import", "matrix", "--input", input, "--at", "1M"])
        .complains(3, &["longer than object"]);

    let files = fixture.files();
    let list = object(&["ls", "--json"]).exits(0).json_lines();
    assert_eq!((list.len(), list[0]["address"].as_str()), (1, made["address"].as_str()));
    object(&["info", "matrix"]).exits(0);
    object(&["info", "other"]).complains(3, &["no object \"other\""]);
    object(&["rm", "matrix", "-n"]).exits(0);
    object(&["rm", "matrix"]).complains(2, &["--yes"]);
    object(&["rm", "matrix", "other", "-y"]).complains(3, &["no object \"other\""]);
    assert_eq!(fixture.files(), files, "looking at it wrote something");
    object(&["rm", "matrix", "-y"]).exits(0);
    assert!(object(&["ls", "--json"]).exits(0).json_lines().is_empty());
    fixture.run("check", &[]).exits(0);
    fixture.run("rm", &["--store", "-y"]).exits(0);
    assert!(!std::path::Path::new(&dir).exists(), "the journal stayed");
}

/// The objects' journal and the superblock, put back one by one: nothing is replayed, nothing is
/// written, `check` says so.
#[test]
fn a_journal_or_superblock_that_was_put_back_is_named_and_not_used() {
    let fixture = empty();
    let dir = fixture.store.to_str().expect("text").to_owned();
    let object = |arguments: &[&str]| {
        let mut all = vec!["object", arguments[0], dir.as_str()];
        all.extend(&arguments[1..]);
        crate::common::run(all)
    };
    let input = fixture.dir.path().join("in");
    let fill = |value: u8| {
        std::fs::write(&input, vec![value; 10_000]).expect("written");
        object(&["import", "a", "--input", input.to_str().expect("text")]).exits(0);
    };
    object(&["create", "a", "--size", "10000"]).exits(0);
    fill(1);
    let names = [("journal", "put back"), ("superblock", "rolled back")];
    let older = names.map(|(name, _)| std::fs::read(fixture.store.join(name)).expect("readable"));
    fill(2);
    let output = fixture.dir.path().join("out");
    for ((name, said), contents) in names.iter().zip(older) {
        let newer = std::fs::read(fixture.store.join(name)).expect("readable");
        std::fs::write(fixture.store.join(name), contents).expect("written");
        let before = fixture.files();
        fixture.run("check", &[]).exits(1);
        object(&["export", "a", "--output", output.to_str().expect("text")])
            .complains(3, &["put back"]);
        assert!(fixture.files() == before, "{name}: looking at it wrote something");
        object(&["rm", "a", "-y"]).complains(3, &[said]);
        std::fs::write(fixture.store.join(name), newer).expect("written");
    }
    fixture.run("check", &[]).exits(0);
    object(&["export", "a", "--output", output.to_str().expect("text")]).exits(0);
    assert!(std::fs::read(&output).expect("read") == vec![2; 10_000]);
}

/// A store with files of keys and of an object's contents beside it.
struct Protected {
    fixture: Fixture,
    dir: String,
    key: String,
    other: String,
    output: String,
    input: String,
    bytes: Vec<u8>,
}

/// [`crate::common::run`] with arguments of a store's directory.
fn run(arguments: &[&str]) -> Ran {
    crate::common::run(arguments.iter().copied())
}

impl Protected {
    fn new() -> Self {
        let fixture = empty();
        let dir = fixture.store.to_str().expect("text").to_owned();
        let path = |name: &str| fixture.dir.path().join(name).to_str().expect("text").to_owned();
        let (key, other, output) = (path("key"), path("other"), path("out"));
        std::fs::write(&key, (0..32).collect::<Vec<u8>>()).expect("written");
        std::fs::write(
            &other,
            "00112233445566778899aabbccddeeff00112233445566778899aabbccddee11\n",
        )
        .expect("written");
        let input = path("in");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i >> 4) as u8).collect();
        std::fs::write(&input, &bytes).expect("written");
        Self { fixture, dir, key, other, output, input, bytes }
    }

    fn path(&self, name: &str) -> String {
        self.fixture.dir.path().join(name).to_str().expect("text").to_owned()
    }

    /// Keys and modes that do not fit are refused.
    fn refuses_keys(&self) {
        let Self { dir, key, .. } = self;
        run(&[
            "object",
            "create",
            dir,
            "plain",
            "--size",
            "64K",
            "--key-file",
            key,
            "--at-rest",
            "none",
        ])
        .complains(3, &["not protected"]);
        for option in ["--key-file", "--passphrase-file"] {
            run(&[
                "object",
                "create",
                dir,
                "x",
                "--size",
                "64K",
                option,
                "/dev/zero",
                "--at-rest",
                "both",
            ])
            .complains(3, &["/dev/zero", "more than 1 MiB"]);
        }
        run(&["object", "create", dir, "x", "--size", "64K", "--at-rest", "both"])
            .complains(3, &["give its key"]);
        run(&["object", "create", dir, "x", "--size", "64K", "--at-rest", "some"])
            .complains(2, &["authenticated"]);
    }

    /// Makes an object, fills it and reads it back; what was said when it was made.
    fn fills(&self) -> Value {
        let Self { bytes, dir, input, key, output, .. } = self;
        let made =
            run(&["object", "create", dir, "box", "--size", "100000", "--key-file", key, "--json"])
                .exits(0)
                .json();
        assert_eq!(made["at_rest"].as_str(), Some("authenticated"));
        run(&["object", "import", dir, "box", "--input", input]).complains(3, &["give its key"]);
        run(&["object", "import", dir, "box", "--input", input, "--key-file", key]).exits(0);
        run(&["object", "export", dir, "box", "--output", output, "--key-file", key]).exits(0);
        assert!(std::fs::read(output).expect("read") == *bytes);
        std::fs::remove_file(output).expect("removed");
        let whole = run(&["verify", dir, "--key-file", key, "--json"]).exits(0).json();
        assert_eq!((whole["pages"].as_u64(), whole["covered"].as_bool()), (Some(25), Some(true)));
        made
    }

    /// The object is put under another key.
    fn rekeys(&self) {
        let Self { dir, key, other, .. } = self;
        run(&["rekey", dir, "box", "--key-file", other, "--new-key-file", key])
            .complains(3, &["not its key"]);
        run(&["rekey", dir, "box", "--key-file", key]).complains(2, &["--new-key-file"]);
        run(&["rekey", dir, "box", "--key-file", key, "--new-key-file", other]).exits(0);
        run(&["verify", dir, "box", "--key-file", key]).complains(3, &["not its key"]);
        run(&["verify", dir, "box", "--key-file", other]).exits(0);
    }

    /// A snapshot in a file. Making it changes no file of the store. It is protected as the object
    /// is, and restoring it is refused while the object is there.
    fn snapshots_and_restores(&self, made: &Value) {
        let Self { dir, fixture, key, other, .. } = self;
        let (snap, cut) = (self.path("snap"), self.path("cut"));
        let files = fixture.files();
        let taken = run(&["snapshot", dir, "box", &snap, "--copy", "--json"]).exits(0).json();
        assert_eq!((taken["reflink"].as_bool(), &files), (Some(false), &fixture.files()));
        run(&["snapshot", dir, "box", &snap]).complains(3, &["cannot make snapshot", "exist"]);
        run(&["snapshot", dir, "other", &self.path("none")]).complains(3, &["no object \"other\""]);
        run(&["restore", dir, &snap]).complains(3, &["object \"box\" has", "remove that first"]);
        run(&["object", "rm", dir, "box", "-y"]).exits(0);
        std::fs::write(&cut, &std::fs::read(&snap).expect("read")[..60_000]).expect("written");
        run(&["restore", dir, &cut]).complains(3, &["cut short", "nothing has changed"]);
        run(&["restore", dir, key]).complains(3, &["no snapshot"]);
        assert!(run(&["object", "ls", dir, "--json"]).exits(0).json_lines().is_empty());
        let back = run(&["restore", dir, &snap, "--json"]).exits(0).json();
        assert_eq!(
            (back["address"].as_str(), back["moved_from"].is_null()),
            (made["address"].as_str(), true)
        );
        run(&["restore", dir, &snap, "--as", "again"]).complains(3, &["remove that first"]);
        run(&["verify", dir, "box", "--key-file", key]).complains(3, &["not its key"]);
        run(&["verify", dir, "box", "--key-file", other]).exits(0);
        run(&["object", "create", dir, "open", "--size", "10000"]).exits(0);
        run(&["object", "import", dir, "open", "--input", key]).exits(0);
    }

    /// A snapshot shares blocks where the file system can do that, and leaves no file where there
    /// is no space for it.
    fn shares_snapshots(&self) {
        let Self { dir, key, output, .. } = self;
        let second = self.path("second");
        // Where there is no space for it, there is no file afterwards.
        let limited = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
        let mut shell = std::process::Command::new("sh");
        shell.args([
            "-c",
            limited,
            env!("CARGO_BIN_EXE_cenote"),
            "snapshot",
            dir,
            "open",
            &second,
            "--copy",
        ]);
        crate::common::Ran::from(shell.output().expect("a shell"))
            .complains(3, &["cannot make snapshot"]);
        assert!(!std::path::Path::new(&second).exists());
        let taken = run(&["snapshot", dir, "open", &second, "--json"]).exits(0).json();
        let said = if taken["reflink"].as_bool() == Some(true) {
            "shares"
        } else {
            "blocks cannot be shared"
        };
        assert!(run(&["snapshot", dir, "open", &self.path("third")]).exits(0).out.contains(said));
        assert!(run(&["restore", dir, &second, "--as", "twin"]).exits(0).out.contains("moved:"));
        run(&["object", "export", dir, "twin", "--output", output, "--len", "32"]).exits(0);
        assert!(std::fs::read(output).expect("read") == std::fs::read(key).expect("read"));
        std::fs::remove_file(output).expect("removed");
    }

    /// One byte of page 2, as it lies in the file, is changed.
    fn names_a_damaged_page(&self, made: &Value) {
        let Self { bytes, dir, fixture, other, output, .. } = self;
        let puddle = fixture
            .store
            .join("puddles")
            .join(made["puddle"].as_str().expect("text").replace('-', ""));
        let mut file = std::fs::read(&puddle).expect("read");
        file[2 * 4096 + 2 * 4096 + 5] ^= 1;
        std::fs::write(&puddle, file).expect("written");
        let found = run(&["verify", dir, "box", "--key-file", other, "--json"]).exits(1).json();
        assert_eq!(found["damaged"][0]["page"].as_u64(), Some(2));
        run(&["object", "export", dir, "box", "--output", output, "--key-file", other])
            .complains(3, &["page 2 of object"]);
        assert!(!Path::new(output).exists(), "an export that failed leaves no file");
        run(&[
            "object",
            "export",
            dir,
            "box",
            "--output",
            output,
            "--key-file",
            other,
            "--skip-damaged",
        ])
        .exits(1);
        let got = std::fs::read(output).expect("read");
        assert!(
            got[8192..12288] == [0; 4096]
                && got[..8192] == bytes[..8192]
                && got[12288..] == bytes[12288..]
        );
    }
}

/// From the command line: a key in a file, damage found and stepped over, another key, and nothing
/// without one.
#[test]
fn protected_objects_are_filled_verified_and_put_under_another_key() {
    let protected = Protected::new();
    protected.refuses_keys();
    let made = protected.fills();
    protected.rekeys();
    protected.snapshots_and_restores(&made);
    protected.shares_snapshots();
    protected.names_a_damaged_page(&made);
}

/// From the command line: every command that opens a pool takes its key in the same way, and none
/// shows anything without one.
#[test]
fn protected_pools_take_their_key_in_every_command() {
    let fixture = empty();
    let dir = fixture.store.to_str().expect("text").to_owned();
    let path = |name: &str| fixture.dir.path().join(name).to_str().expect("text").to_owned();
    let (key, other) = (path("key"), path("other"));
    std::fs::write(&key, (0..32).collect::<Vec<u8>>()).expect("written");
    std::fs::write(&other, (1..33).collect::<Vec<u8>>()).expect("written");
    let run = |arguments: &[&str]| crate::common::run(arguments.iter().copied());
    let direct = ["create", &dir, "p", "--mode", "direct", "--at-rest", "both", "--key-file", &key];
    run(&direct).complains(2, &["protected at rest", "direct mode"]);
    run(&["create", &dir, "p", "--at-rest", "both"]).complains(2, &["needs a key"]);
    run(&["create", &dir, "p", "--at-rest", "none", "--key-file", &key]).complains(2, &["no key"]);
    let made = run(&["create", &dir, "p", "--key-file", &key, "--json"]).exits(0).json();
    assert_eq!(
        (made["at_rest"].as_str(), made["mode"].as_str()),
        (Some("authenticated"), Some("shadowed"))
    );
    let listed = run(&["ls", &dir, "--json"]).exits(0).json();
    assert_eq!(listed["at_rest"].as_str(), Some("authenticated"));
    assert!(listed["named_roots"].is_null(), "{listed}");
    let listed = run(&["ls", &dir, "--json", "--key-file", &key]).exits(0).json();
    assert!(listed["named_roots"].is_array(), "{listed}");
    run(&["info", &dir]).exits(0);
    run(&["stats", &dir, "p"]).complains(3, &["give its key"]);
    run(&["stats", &dir, "p", "--key-file", &other]).complains(3, &["not its key"]);
    run(&["stats", &dir, "p", "--key-file", &key]).exits(0);
    let whole = run(&["verify", &dir, "--key-file", &key, "--json"]).exits(0).json();
    assert_eq!((whole["pool"].as_str(), whole["covered"].as_bool()), (Some("p"), Some(true)));
    // The heap is made by the first writer.
    run(&["reclaim", &dir, "p", "--key-file", &key]).exits(0);
    // Beside a pool without a key, one that is not opened is passed over, but not with a wrong key.
    run(&["create", &dir, "open", "--at-rest", "none"]).exits(0);
    run(&["check", &dir]).exits(0);
    run(&["check", &dir, "--key-file", &key]).exits(0);
    run(&["check", &dir, "--key-file", &other]).complains(3, &["\"p\"", "not its key"]);
    run(&["rm", &dir, "open", "-y"]).exits(0);
    run(&["verify", &dir, "p"]).complains(3, &["give its key"]);
    run(&["rekey", &dir, "p", "--key-file", &key, "--new-key-file", &other]).exits(0);
    run(&["stats", &dir, "p", "--key-file", &key]).complains(3, &["not its key"]);
    run(&["stats", &dir, "p", "--key-file", &other]).exits(0);
    // A byte of the root puddle's last tree node or header: damage has a name and a number.
    let file = std::fs::read_dir(fixture.store.join("puddles")).expect("puddles").flatten();
    let sealed = file
        .map(|entry| entry.path())
        .find(|path| std::fs::metadata(path).is_ok_and(|m| m.len() > 2 << 20));
    let sealed = sealed.expect("the root puddle");
    let mut bytes = std::fs::read(&sealed).expect("read");
    let page = (1..512)
        .find(|page| bytes[page * 4096..][..4096].iter().any(|byte| *byte != 0))
        .expect("a page");
    bytes[page * 4096 + 9] ^= 1;
    std::fs::write(&sealed, bytes).expect("written");
    let found = run(&["verify", &dir, "p", "--key-file", &other, "--json"]).exits(1).json();
    assert_eq!(found["damaged"][0]["page"].as_u64(), Some(page as u64 - 1));
}

/// From the command line: copies, archives and new addresses of a protected pool need no key; using
/// them does.
#[test]
fn protected_pools_are_copied_and_shipped_without_a_key_and_used_with_it() {
    let (fixture, there) = (empty(), empty());
    let dir = fixture.store.to_str().expect("text").to_owned();
    let path = |name: &str| fixture.dir.path().join(name).to_str().expect("text").to_owned();
    let (key, other, archive) = (path("key"), path("other"), path("archive"));
    std::fs::write(&key, (0..32).collect::<Vec<u8>>()).expect("written");
    std::fs::write(&other, (1..33).collect::<Vec<u8>>()).expect("written");
    let run = |arguments: &[&str]| crate::common::run(arguments.iter().copied());
    run(&["create", &dir, "p", "--key-file", &key]).exits(0);
    run(&["reclaim", &dir, "p", "--key-file", &key]).exits(0);
    run(&["clone", &dir, "none", "q"]).complains(3, &["\"none\""]);
    let files = fixture.files();
    run(&["clone", &dir, "p", "q", "--key-file", &other]).complains(3, &["not its key"]);
    assert_eq!(fixture.files(), files);
    let copy = run(&["clone", &dir, "p", "q", "--json"]).exits(0).json();
    assert_eq!(copy["due_puddles"].as_u64(), Some(1));
    // Only looked at, nothing is sealed anew.
    run(&["verify", &dir, "q", "--key-file", &key]).exits(0);
    run(&["relocate", &dir, "q"]).complains(3, &["give its key"]);
    run(&["relocate", &dir, "q", "--key-file", &other]).complains(3, &["not its key"]);
    run(&["relocate", &dir, "q", "--key-file", &key]).exits(0);
    run(&["rekey", &dir, "q", "--key-file", &key, "--new-key-file", &other]).exits(0);
    run(&["verify", &dir, "q", "--key-file", &other]).exits(0);
    run(&["verify", &dir, "p", "--key-file", &key]).exits(0);
    let written = run(&["export", &dir, "p", &archive, "--json"]).exits(0).json();
    assert_eq!(written["unseen"][0].as_str(), Some("p"));
    run(&["export", &dir, "p", &path("more"), "--with-targets"]).complains(3, &["without its key"]);
    run(&["export", &dir, "p", &path("more"), "--key-file", &other]).complains(3, &["not its key"]);
    let more =
        run(&["export", &dir, "p", &path("more"), "--with-targets", "--key-file", &key, "--json"]);
    assert_eq!(more.exits(0).json()["unseen"].as_array().map(Vec::len), Some(0));
    there.run("import", &[&archive, "-n"]).exits(0);
    there.run("import", &[&archive]).exits(0);
    there.run("stats", &["p"]).complains(3, &["give its key"]);
    there.run("stats", &["p", "--key-file", &key]).exits(0);
    there.run("import", &[&archive, "--as", "second", "--eager", "--key-file", &key]).exits(0);
    let pending = run(&["randomize", &dir, "p", "--json"]).exits(0).json();
    assert_eq!(pending["due_puddles"].as_u64(), Some(2), "{pending}");
    run(&["stats", &dir, "p", "--key-file", &key]).exits(0);
    // What is pending is finished before the pool is copied again, and that needs its key.
    run(&["clone", &dir, "q", "r"]).complains(3, &["give its key"]);
    run(&["clone", &dir, "q", "r", "--eager", "--key-file", &other]).exits(0);
}

/// Every damaged page is listed, in order, and nothing else: not only the first, and not what lies
/// between them.
#[test]
fn verify_lists_every_damaged_page_of_an_object() {
    let fixture = empty();
    let dir = fixture.store.to_str().expect("text").to_owned();
    let path = |name: &str| fixture.dir.path().join(name).to_str().expect("text").to_owned();
    let (key, input) = (path("key"), path("in"));
    std::fs::write(&key, (0..32).collect::<Vec<u8>>()).expect("written");
    std::fs::write(&input, vec![5; 7 * 4096]).expect("written");
    let run = |arguments: &[&str]| crate::common::run(arguments.iter().copied());
    for mode in ["authenticated", "both", "integrity"] {
        let key: &[&str] = if mode == "integrity" { &[] } else { &["--key-file", &key] };
        let with = |arguments: &[&str]| run(&[arguments, key].concat());
        let create = ["object", "create", &dir, mode, "--size", "28K", "--at-rest", mode, "--json"];
        let made = with(&create).exits(0).json();
        with(&["object", "import", &dir, mode, "--input", &input]).exits(0);
        let whole = with(&["verify", &dir, mode, "--json"]).exits(0).json();
        assert_eq!(
            (whole["pages"].as_u64(), whole["damaged"].as_array().map(Vec::len)),
            (Some(7), Some(0))
        );
        let puddle = made["puddle"].as_str().expect("text").replace('-', "");
        let puddle = fixture.store.join("puddles").join(puddle);
        let mut file = std::fs::read(&puddle).expect("read");
        // The first and the last byte of a page: its neighbours are whole. Two pages lie before the
        // first.
        file[2 * 4096 + 2 * 4096] ^= 1;
        file[2 * 4096 + 5 * 4096 - 1] ^= 0x80;
        std::fs::write(&puddle, file).expect("written");
        let found = with(&["verify", &dir, mode, "--json"]).exits(1).json();
        let listed = found["damaged"].as_array().expect("a list");
        let pages: Vec<_> =
            listed.iter().map(|damage| damage["page"].as_u64().expect("a number")).collect();
        assert_eq!((pages, found["pages"].as_u64()), (vec![2, 4], Some(7)), "{found}");
        assert!(
            listed.iter().all(|damage| damage["puddle"].is_null() && damage["what"].is_string())
        );
        let text = with(&["verify", &dir, mode]).exits(1).out;
        for line in ["page 2 of object", "page 4 of object", "2 of 7 pages"] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert_eq!(text.matches("damaged:").count(), 2, "{text}");
        run(&["object", "rm", &dir, mode, "-y"]).exits(0);
    }
}

/// What a writer that ended left behind, as the paper's letters: D, W, C and P. (R leaves nothing
/// that another process could see, and while a writer is there, no other is let in.)
#[test]
fn the_letter_of_an_object_says_how_its_last_writer_ended() {
    use cenote_layout::object::JOURNAL_HALVES_OFFSET;
    use cenote_medium::{MediumOptions, RealMedium};
    use cenote_object::{Objects, ObjectsOptions, Permission, Trim};
    let fixture = empty();
    let dir = fixture.store.to_str().expect("text").to_owned();
    let run = |arguments: &[&str]| crate::common::run(arguments.iter().copied());
    run(&["object", "create", &dir, "a", "--size", "8K"]).exits(0);
    // A session that copies nothing before it must, and that ends as if it were killed.
    let session = |psyncs: bool, value: u8| {
        let medium =
            RealMedium::open(&fixture.store, &MediumOptions::default()).expect("a directory");
        let options = cenote_store::OpenOptions::default();
        let (store, _) =
            cenote_object::Store::open(std::sync::Arc::new(medium), options).expect("a store");
        let options = ObjectsOptions { trim: Trim::Inline, ..ObjectsOptions::default() };
        let objects = Objects::open(&store, &options).expect("objects");
        let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attached");
        a.as_mut_slice().expect("writable")[5000] = value;
        if psyncs {
            a.psync().expect("psynced");
        }
        run(&["object", "info", &dir, "a"]).complains(4, &["in use"]);
        objects.abandon();
        drop((a, objects));
        store.abandon();
    };
    let shows = |letter: &str, meaning: &str, value: u8| {
        // Looking changes nothing, so that the next look finds the same.
        let files = fixture.files();
        for _ in 0..2 {
            let info = run(&["object", "info", &dir, "a", "--json"]).exits(0).json();
            assert_eq!(info["state"].as_str(), Some(letter), "{info}");
            let died =
                info["left"].as_str().expect("text").contains(&std::process::id().to_string());
            assert_eq!(died, letter != "D", "{info}");
            let list = run(&["object", "ls", &dir, "--json"]).exits(0).json_lines();
            assert_eq!(list[0]["state"].as_str(), Some(letter));
            let text = run(&["object", "info", &dir, "a"]).exits(0).out;
            assert!(
                text.contains(&format!("{letter} (")) && text.contains(meaning),
                "{letter}: {text}"
            );
            let bytes = fixture.dir.path().join("out");
            run(&["object", "export", &dir, "a", "--output", bytes.to_str().expect("text")])
                .exits(0);
            assert_eq!(std::fs::read(&bytes).expect("read")[5000], value, "{letter}");
            std::fs::remove_file(&bytes).expect("removed");
        }
        assert_eq!(fixture.files(), files, "looking at it wrote something");
    };
    shows("D", "detached", 0);
    session(false, 1);
    shows("W", "stores since the last psync are lost", 0);
    session(true, 2);
    shows("C", "a psync is committed and not copied yet", 2);
    // Without its last sector the record is not whole: a psync that was never acknowledged.
    let journal = fixture.store.join("journal");
    let mut bytes = std::fs::read(&journal).expect("read");
    let end = JOURNAL_HALVES_OFFSET as usize + 4096;
    assert!(bytes[end - 32..end].iter().any(|byte| *byte != 0), "the record ends with its page");
    bytes[end - 512..end].fill(0);
    std::fs::write(&journal, bytes).expect("written");
    shows("P", "psync before left it", 0);
    // The next writer goes on from there, and leaves it as it should be.
    let input = fixture.dir.path().join("in");
    std::fs::write(&input, [3; 6000]).expect("written");
    run(&["object", "import", &dir, "a", "--input", input.to_str().expect("text")]).exits(0);
    shows("D", "detached", 3);
}

/// The file of an object without protection that was there before the last close is put back: every
/// command that would use it says so, and none serves it.
#[test]
fn an_older_file_of_an_object_is_named_and_not_used() {
    let fixture = empty();
    let dir = fixture.store.to_str().expect("text").to_owned();
    let input = fixture.dir.path().join("in");
    let to = |name: &str| fixture.dir.path().join(name).to_str().expect("text").to_owned();
    let object = |rest: &[&str]| {
        crate::common::run([&["object", rest[0], dir.as_str()], &rest[1..]].concat())
    };
    object(&["create", "o", "--size", "256K"]).exits(0);
    let fill = |byte: u8| {
        std::fs::write(&input, vec![byte; 256 << 10]).expect("written");
        object(&["import", "o", "--input", input.to_str().expect("text")]).exits(0);
    };
    fill(1);
    let mut files = std::fs::read_dir(fixture.store.join("puddles")).expect("read");
    let file = files.next().expect("the object's").expect("an entry").path();
    let older = std::fs::read(&file).expect("read");
    fill(2);
    fixture.run("check", &[]).exits(0);
    std::fs::write(&file, older).expect("put back");
    let said = "of another moment than the catalog";
    let tells = |ran: crate::common::Ran| {
        let words: Vec<&str> = ran.out.split_whitespace().collect();
        assert!(words.join(" ").contains(said), "{}", ran.out);
        ran.exits(1);
    };
    for command in ["check", "ls", "info"] {
        tells(fixture.run(command, &[]));
    }
    tells(object(&["ls"]));
    fixture.run("verify", &["o"]).complains(3, &[said]);
    object(&["export", "o", "--output", &to("out")]).complains(3, &[said]);
    object(&["import", "o", "--input", input.to_str().expect("text")]).complains(3, &[said]);
    fixture.run("snapshot", &["o", &to("snapshot")]).complains(3, &[said]);
    tells(fixture.run("backup", &[&to("copy")]));
    tells(crate::common::run(["check", &to("copy")]));
    object(&["rm", "o", "-y"]).exits(0);
    fixture.run("check", &[]).exits(0);
}
