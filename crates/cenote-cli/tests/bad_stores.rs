//! What is not a store, damaged, in use or not to be written: named in one line, with the right
//! exit status, and left as it is.

use crate::common::{Fixture, Ran, cenote, empty, killed, run, with_pool};
use cenote_layout::header::seal;
use cenote_layout::superblock::{INCOMPAT_ALWAYS, INCOMPAT_MOUNTING, STATE_OPEN, Superblock};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes as _, IntoBytes as _};

const LOOKING: [&str; 6] = ["ls", "info", "check", "dump", "show", "stats"];

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
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("readable").count(),
        1,
        "something was left behind"
    );
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
    let root = dump
        .iter()
        .find(|object| object["type"] == "tour::Progress")
        .expect("the type of the root");
    let fields = root["fields"].as_array().expect("a list");
    assert!(fields.iter().any(|field| field["name"] == "words"), "{root}");
    let blocks =
        fixture.run("dump", &["--pool", "tour", "--blocks", "--json"]).exits(0).json_lines();
    assert!(blocks.iter().filter(|object| object["type"] == "cenote/ListNode<u64>").count() >= 950);
    // An open for writing recovers.
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
    for (command, status) in [("ls", 1), ("stats", 3), ("info", 1)] {
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
    let waiting =
        cenote().arg("ls").arg(&fixture.store).args(["--wait", "20"]).spawn().expect("cenote runs");
    std::thread::sleep(std::time::Duration::from_millis(50));
    store.close().expect("closed");
    assert!(waiting.wait_with_output().expect("it ends").status.success());
}

#[test]
fn a_read_only_directory_can_be_looked_at_and_not_written() {
    let fixture = with_pool();
    let modes = |directory: u32, file: u32| {
        for (path, _) in fixture.files() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file))
                .expect("allowed");
        }
        for path in [fixture.store.join("puddles"), fixture.store.clone()] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(directory))
                .expect("allowed");
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
    superblocks(&fixture, |block| block.prefix.version = 9);
    fixture.run("info", &[]).complains(3, &["version 9", "made by a newer release"]);
    // Without a checksum that fits it is damage.
    let path = fixture.store.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    for copy in [0, 4096] {
        bytes[copy + 8] = 17;
    }
    std::fs::write(&path, bytes).expect("written");
    fixture.run("info", &[]).complains(3, &["both copies of the superblock are damaged"]);
}

/// Changes both copies of the superblock, and gives them checksums that fit.
fn superblocks(fixture: &Fixture, change: impl Fn(&mut Superblock)) {
    let path = fixture.store.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    for copy in bytes.chunks_exact_mut(4096) {
        let mut block = Superblock::read_from_bytes(copy).expect("a whole copy");
        change(&mut block);
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    std::fs::write(&path, bytes).expect("written");
}

/// That every command, looking or changing, refuses the store with these words, and changes
/// nothing.
fn all_refuse(fixture: &Fixture, parts: &[&str]) {
    let before = fixture.files();
    for command in LOOKING {
        fixture.run(command, &[]).complains(3, parts);
    }
    fixture.run("create", &["x"]).complains(3, parts);
    fixture.run("rm", &["words", "-y"]).complains(3, parts);
    assert_eq!(fixture.files(), before);
}

#[test]
fn a_superblock_of_something_else_is_refused_and_left_alone() {
    let fixture = with_pool();
    std::fs::write(fixture.store.join("superblock"), vec![b'x'; 8192]).expect("written");
    all_refuse(&fixture, &["magic", "xxxxxxxx"]);
    std::fs::write(fixture.store.join("superblock"), "").expect("written");
    all_refuse(&fixture, &["superblock", "restore"]);
    std::fs::remove_file(fixture.store.join("superblock")).expect("removed");
    all_refuse(&fixture, &["no file \"superblock\"", "restore"]);
}

#[test]
fn an_unknown_feature_is_refused_or_read_only_as_it_says() {
    let fixture = with_pool();
    superblocks(&fixture, |block| block.prefix.incompat = 1 << 40);
    all_refuse(&fixture, &["0x10000000000", "newer release"]);
    superblocks(&fixture, |block| {
        (block.prefix.incompat, block.prefix.ro_compat) = (INCOMPAT_ALWAYS | INCOMPAT_MOUNTING, 2);
    });
    let before = fixture.files();
    for command in LOOKING {
        fixture.run(command, &[]).exits(0);
    }
    fixture.run("create", &["x"]).complains(3, &["0x2", "read-only"]);
    assert_eq!(fixture.files(), before);
}

fn only_puddle(fixture: &Fixture) -> PathBuf {
    let mut puddles = std::fs::read_dir(fixture.store.join("puddles")).expect("readable").flatten();
    let path = puddles.next().expect("one").path();
    assert!(puddles.next().is_none());
    path
}

/// That looking finds the pool "words" damaged, with these words, and changes nothing.
fn pool_is_damaged(fixture: &Fixture, part: &str) {
    let before = fixture.files();
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert_eq!(check["sound"].as_bool(), Some(false), "{check}");
    let found = check["findings"].to_string();
    assert!(found.contains("words") && found.contains(part), "{found}");
    assert!(fixture.run("check", &[]).exits(1).out.contains(part));
    for command in ["ls", "info", "dump"] {
        let ran = fixture.run(command, &[]);
        assert!(matches!(ran.status, Some(0 | 1)), "{command}: {}", ran.err);
    }
    fixture.run("stats", &[]).complains(3, &["\"words\" is damaged", part]);
    fixture.run("dump", &["--pool", "words"]).complains(3, &[part, "cenote rm"]);
    assert!(fixture.run("info", &["--json"]).exits(1).json().to_string().contains(part));
    assert_eq!(fixture.files(), before);
}

#[test]
fn a_missing_or_resized_puddle_is_named_and_the_pool_can_be_removed() {
    let fixture = with_pool();
    let path = only_puddle(&fixture);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(64 << 20).expect("made longer");
    pool_is_damaged(&fixture, "made longer");
    std::fs::remove_file(&path).expect("removed");
    pool_is_damaged(&fixture, "missing");
    assert!(fixture.run("info", &[]).exits(1).out.contains("missing"));
    fixture.run("rm", &["words", "-y"]).exits(0);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn a_catalog_that_was_rolled_back_is_named_and_not_written() {
    let fixture = with_pool();
    let names = ["catalog.0", "catalog.1"];
    let older = names.map(|name| std::fs::read(fixture.store.join(name)).expect("readable"));
    fixture.run("create", &["later"]).exits(0);
    for (name, contents) in names.iter().zip(older) {
        std::fs::write(fixture.store.join(name), contents).expect("written");
    }
    let before = fixture.files();
    fixture.run("create", &["x"]).complains(3, &["rolled back", "cenote check"]);
    fixture.run("rm", &["words", "-y"]).complains(3, &["rolled back"]);
    for command in ["info", "check", "dump", "ls", "show", "stats"] {
        assert!(fixture.run(command, &[]).exits(1).out.contains("rolled back"), "{command}");
    }
    assert!(fixture.run("ls", &[]).exits(1).out.contains("words"));
    assert_eq!(fixture.files(), before);
}

/// A small file system in memory at a directory, for as long as this lives; `None` where this user
/// may not mount.
pub(crate) struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    pub(crate) fn new(at: &'a Path, options: &str) -> Option<Self> {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        match command.output() {
            Ok(output) if output.status.success() => Some(Self(at)),
            _ => {
                println!("skipped: this user may not mount file systems");
                None
            }
        }
    }

    fn again(&self, options: &str) {
        let mut command = std::process::Command::new("mount");
        assert!(command.args(["-o", options]).arg(self.0).status().expect("mount runs").success());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_so_and_leaves_the_store_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(_disk) = Mounted::new(dir.path(), "size=4m") else { return };
    let store = dir.path().join("store");
    let path = store.to_str().expect("text");
    run(["format", path, "-y"]).exits(0);
    run(["create", path, "words"]).exits(0);
    let fixture = Fixture { dir: tempfile::tempdir().expect("a directory"), store: store.clone() };
    let contents = |fixture: &Fixture| -> Vec<(PathBuf, Vec<u8>)> {
        let files = fixture.files().into_iter().map(|(path, (bytes, _))| (path, bytes));
        files.filter(|(path, _)| !path.ends_with("superblock")).collect()
    };
    let before = contents(&fixture);
    for size in ["4M", "3M", "1G"] {
        let said = [path, "puddles/", "no space for", "bytes", "free some space"];
        fixture.run("create", &["more", "--size", size]).complains(3, &said);
        assert!(contents(&fixture) == before, "something was left behind");
    }
    fixture.run("check", &[]).exits(0);
    // Not a byte is left: looking needs none.
    let rest = std::fs::File::create(dir.path().join("rest")).expect("made");
    let mut rest = std::io::BufWriter::new(rest);
    while rest.write_all(&[1; 4096]).is_ok() {}
    for command in LOOKING {
        fixture.run(command, &[]).exits(0);
    }
    fixture.run("create", &["x", "--size", "256K"]).complains(3, &["space"]);
    run(["format", dir.path().join("other").to_str().expect("text"), "-y"])
        .complains(3, &["space"]);
    // Emptied, not removed: a forked child of another test may have the file open.
    std::fs::write(dir.path().join("rest"), []).expect("emptied");
    fixture.run("create", &["x", "--size", "256K"]).exits(0);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn a_read_only_file_system_can_be_looked_at_and_not_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = Mounted::new(dir.path(), "size=16m") else { return };
    let store = dir.path().join("store");
    run(["format", store.to_str().expect("text"), "-y"]).exits(0);
    let fixture = Fixture { dir: tempfile::tempdir().expect("a directory"), store };
    fixture.run("create", &["words"]).exits(0);
    disk.again("remount,ro");
    let before = fixture.files();
    for command in LOOKING {
        fixture.run(command, &[]).exits(0);
    }
    fixture.run("create", &["x"]).complains(3, &["read-only"]);
    fixture.run("rm", &["words", "-y"]).complains(3, &["read-only"]);
    fixture.run("rm", &["--store", "-y"]).complains(3, &["read-only"]);
    run(["format", dir.path().join("other").to_str().expect("text"), "-y"])
        .complains(3, &["read-only"]);
    // It was closed, so it is copied as it lies; one that was not takes recovery first.
    let copy = fixture.dir.path().join("copy");
    let copy = copy.to_str().expect("text");
    fixture.run("backup", &[copy]).exits(0);
    run(["check", copy]).exits(0);
    run(["create", copy, "more"]).exits(0);
    assert_eq!(fixture.files(), before);
    disk.again("remount,rw");
    superblocks(&fixture, |block| block.state = STATE_OPEN);
    disk.again("remount,ro");
    let again = fixture.dir.path().join("again");
    fixture
        .run("backup", &[again.to_str().expect("text")])
        .complains(3, &["was not closed", "cenote export"]);
    assert!(!again.exists());
}

#[test]
fn a_user_without_permission_is_told_what_may_not_be_read() {
    let fixture = with_pool();
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("allowed");
    };
    mode(fixture.dir.path(), 0o755);
    // As another user, where this one may do everything.
    let as_other = std::fs::read_link("/proc/self").is_ok() && another_user_can_run();
    let ran = |command: &str, arguments: &[&str]| -> Ran {
        let mut child = cenote();
        child.arg(command).arg(&fixture.store).args(arguments);
        if as_other {
            child.uid(65534).gid(65534);
        }
        child.output().expect("cenote runs").into()
    };
    for name in ["catalog.0", "superblock", "puddles"] {
        let path = fixture.store.join(name);
        let was = std::fs::metadata(&path).expect("there").permissions().mode();
        mode(&path, 0o000);
        if !as_other && (std::fs::read(&path).is_ok() || std::fs::read_dir(&path).is_ok()) {
            mode(&path, was);
            println!("skipped: this user may read everything, and no other can run the command");
            return;
        }
        for command in ["info", "check", "ls"] {
            ran(command, &[]).complains(3, &["permission"]);
        }
        mode(&path, was);
    }
    let (parent, new) = (fixture.dir.path(), fixture.dir.path().join("new"));
    let mut child = cenote();
    child.arg("format").arg(&new);
    if as_other {
        child.uid(65534).gid(65534);
    }
    mode(parent, 0o555);
    Ran::from(child.output().expect("cenote runs"))
        .complains(3, &["cannot be made", "Permission denied", "choose a directory"]);
    mode(parent, 0o755);
    // Readable, not writable: looking works.
    for path in [&fixture.store, &fixture.store.join("puddles")] {
        mode(path, 0o555);
    }
    for path in fixture.files().keys() {
        mode(path, 0o444);
    }
    let before = fixture.files();
    ran("info", &[]).exits(0);
    ran("check", &[]).exits(0);
    ran("create", &["x"]).complains(3, &["permission"]);
    assert_eq!(fixture.files(), before);
    for path in [&fixture.store, &fixture.store.join("puddles")] {
        mode(path, 0o755);
    }
}

/// Whether user 65534 can run the command: only if this user may become another, and the
/// command lies where all may go.
fn another_user_can_run() -> bool {
    let mut command = cenote();
    command.arg("--version").uid(65534).gid(65534);
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_pool_that_can_be_in_no_store_is_refused_and_no_byte_changes() {
    let fixture = with_pool();
    let before = fixture.files();
    for (arguments, parts) in [
        (vec!["x", "--size", "2T"], vec!["window", "free"]),
        (vec!["x", "--size", "0"], vec!["0 bytes", "4096"]),
        (vec!["x", "--size", "5000"], vec!["5000", "4096"]),
        (vec!["words"], vec!["\"words\" already"]),
        (vec![" x"], vec!["cannot name a pool"]),
        (vec!["x", "--size", "4M", "--size-max", "2M"], vec!["\"x\""]),
    ] {
        fixture.run("create", &arguments).complains(3, &parts);
        assert_eq!(fixture.files(), before, "{arguments:?}");
    }
}

#[test]
fn pools_are_shown_fresh_clean_or_dirty_and_with_their_named_roots() {
    use cenote::{Result, Store};
    let fixture = with_pool();
    let state = |fixture: &Fixture, pool: &str| -> String {
        let info = fixture.run("info", &["--json"]).exits(0).json();
        let pools = info["pools"].as_array().expect("a list");
        let found = pools.iter().find(|object| object["pool"] == pool).expect("listed");
        found["state"].as_str().expect("text").to_owned()
    };
    assert_eq!(state(&fixture, "words"), "fresh");
    assert!(fixture.run("info", &[]).exits(0).out.contains("fresh"));
    {
        let store = Store::open(&fixture.store).expect("opened");
        let pool = store.pool("words").expect("a pool");
        pool.write(|tx| -> Result<()> {
            let number = tx.alloc(7u64)?;
            tx.set_named_root("answer", Some(number))
        })
        .expect("committed");
        drop(pool);
        store.close().expect("closed");
    }
    assert_eq!(state(&fixture, "words"), "clean");
    for command in ["ls", "info"] {
        assert!(fixture.run(command, &[]).exits(0).out.contains("answer"), "{command}");
    }
    let listed = fixture.run("ls", &["--json"]).exits(0).json_lines();
    assert_eq!(listed[0]["named_roots"][0]["name"], "answer");
    let dump = fixture.run("dump", &["--pool", "words", "--json"]).exits(0).json_lines();
    assert!(
        dump.iter().any(|object| object["kind"] == "named-root" && object["type"] == "u64"),
        "{dump:?}"
    );
    fixture.run("check", &[]).exits(0);
    assert_eq!(state(&killed(), "tour"), "dirty");
}

/// A store that was left open belongs to another boot, if the boot's id differs: then power failed.
/// An id that cannot be read says nothing. So it is with the mounting of its file system.
#[test]
fn a_boot_that_cannot_be_asked_for_is_an_error_and_no_loss_of_power() {
    use cenote::Reader as _;
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("store");
    let made = cenote().arg("format").arg(&at).status().expect("it runs");
    assert!(made.success());
    let store = cenote::Store::open(&at).expect("opened");
    let pool = store.pool("p").expect("a pool");
    pool.write(|tx| tx.alloc(7u64).and_then(|value| tx.set_root(value))).expect("written");
    drop(pool);
    store.abandon();
    let device = std::fs::metadata(&at).expect("it is there").dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    let disk = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok();
    let disk = disk.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    let mountings =
        disk.iter().flat_map(|disk| ["ext4", "xfs"].map(|of| format!("/sys/fs/{of}/{disk}")));
    let mounting = mountings.filter(|path| std::path::Path::new(path).exists());
    let asked = std::iter::once("/proc/sys/kernel/random/boot_id".to_owned()).chain(mounting);
    let errors = ["EMFILE", "ENOMEM", "EIO"];
    for (asked, error) in asked.flat_map(|asked| errors.map(|error| (asked.clone(), error))) {
        let plain = cenote();
        let ran = std::process::Command::new("strace")
            .args(["-f", "-qq", "-e", "signal=none", "-o"])
            .arg(dir.path().join("calls"))
            .args(["-P", &asked, "-e"])
            .arg(format!("inject=openat:error={error}"))
            .arg(plain.get_program())
            .envs(plain.get_envs().filter_map(|(name, to)| Some((name, to?))))
            .arg("trim")
            .arg(&at)
            .output();
        let Ok(ran) = ran else { return println!("skipped: there is no strace") };
        let said = String::from_utf8_lossy(&ran.stderr);
        if said.starts_with("strace:") {
            return println!("skipped: strace may not trace: {}", said.trim());
        }
        assert_eq!(ran.status.code(), Some(3), "{asked} {error}: {said}");
    }
    let store = cenote::Store::open(&at).expect("opened");
    assert!(store.report().damage.is_empty(), "{:?}", store.report());
    let pool = store.pool("p").expect("not torn");
    let view = pool.read().expect("a view");
    let root = view.root::<u64>().expect("a root").expect("set");
    assert_eq!(view.get(root).ok(), Some(&7));
}
