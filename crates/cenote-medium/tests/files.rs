//! Files of a real medium: what works, and each way in which it fails.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_medium::{
    Durability, FileHandle, Medium, MediumError, MediumKind, MediumOptions, OwnedMedium, RealMedium,
};

/// A medium whose files a test may change.
pub(crate) fn own<'a>(
    medium: &'a (dyn Medium + 'static),
) -> OwnedMedium<&'a (dyn Medium + 'static)> {
    // SAFETY: no reference leads into what the tests map; they look at it through raw pointers.
    unsafe { OwnedMedium::new(medium) }
}

fn open(path: &Path) -> RealMedium {
    RealMedium::open(path, &MediumOptions::default()).expect("open the medium")
}

fn open_read_only(path: &Path) -> RealMedium {
    RealMedium::open(path, &MediumOptions { read_only: true, ..MediumOptions::default() })
        .expect("open read-only")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_handle_goes_with_its_file_to_another_name() {
    let dir = tempfile::tempdir().expect("directory");
    let media: [Arc<dyn Medium>; 2] =
        [Arc::new(open(dir.path())), SimMedium::new(SimOptions::new(Durability::Process))];
    for medium in media {
        // SAFETY: nothing maps these files.
        let medium = unsafe { OwnedMedium::new(medium) };
        medium.create("journal", 1).expect("create");
        medium.create("journal.new", 4).expect("create");
        let mut file = FileHandle::open(&medium, "journal.new").expect("open");
        file.write_at(0, b"new").expect("write");
        file.rename("journal").expect("rename");
        assert_eq!(file.name(), "journal");
        file.write_at(3, b"!").expect("write");
        file.sync().expect("sync");
        assert_eq!(medium.read("journal").expect("read"), b"new!");
        assert!(!medium.exists("journal.new").expect("examined"));
        file.rename("nowhere/journal").expect_err("there is no such directory");
        assert_eq!(file.name(), "journal");
        file.write_at(0, b"N").expect("write");
        assert_eq!(medium.read("journal").expect("read"), b"New!");
    }
}

#[test]
fn files_are_created_with_their_space_and_read_back() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("superblock", 8192).expect("create");
    assert_eq!(medium.len("superblock").expect("len"), 8192);
    assert!(medium.read("superblock").expect("read").iter().all(|&byte| byte == 0));
    let blocks = fs::metadata(dir.path().join("superblock")).expect("metadata").blocks();
    assert!(blocks * 512 >= 8192, "space was taken: {blocks} blocks");

    own(&medium).write_at("superblock", 4090, b"across the pages").expect("write");
    medium.sync("superblock").expect("sync");
    let mut buf = [0; 16];
    assert_eq!(medium.read_at("superblock", 4090, &mut buf).expect("read"), 16);
    assert_eq!(&buf, b"across the pages");
    assert_eq!(
        medium.read_at("superblock", 8190, &mut buf).expect("read"),
        2,
        "up to the end of the file"
    );
    assert_eq!(medium.read_at("superblock", 9000, &mut buf).expect("read"), 0);

    own(&medium).write_at("superblock", 8192, b"more").expect("write");
    assert_eq!(medium.len("superblock").expect("len"), 8196);
    own(&medium).truncate("superblock", 10).expect("truncate");
    assert_eq!(medium.read("superblock").expect("read").len(), 10);
}

#[test]
fn space_is_given_back_and_taken_again() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("a", 1 << 20).expect("create");
    own(&medium).write_at("a", 0, &vec![7; 1 << 20]).expect("write");
    medium.sync("a").expect("sync");
    let blocks = || fs::metadata(dir.path().join("a")).expect("metadata").blocks();
    let full = blocks();
    // SAFETY: nothing is mapped.
    let release =
        |medium: &RealMedium, name: &str, offset, len| unsafe { medium.release(name, offset, len) };
    for (offset, len) in [(100, 4096), (0, 100), (1 << 20, 4096), (u64::MAX - 4095, 4096), (0, 0)] {
        for result in
            [release(&medium, "a", offset, len).map(|_| ()), medium.ensure("a", offset, len)]
        {
            assert!(
                matches!(result, Err(MediumError::BadRange { .. })),
                "{offset} {len}: {result:?}"
            );
        }
    }
    assert!(release(&medium, "b", 0, 4096).is_err_and(|error| error.is_not_found()));
    let read_only = open_read_only(dir.path());
    assert!(matches!(release(&read_only, "a", 0, 4096), Err(MediumError::ReadOnly { .. })));
    assert!(matches!(read_only.ensure("a", 0, 4096), Err(MediumError::ReadOnly { .. })));
    assert_eq!(blocks(), full);
    if !release(&medium, "a", 64 << 10, 512 << 10).expect("release") {
        println!("skipped: this file system cannot take part of a file back");
        return;
    }
    assert!(blocks() <= full - 1000, "{} blocks of {full}", blocks());
    let bytes = medium.read("a").expect("read");
    let hole = (64 << 10)..(576 << 10);
    assert!(bytes.iter().enumerate().all(|(i, &b)| b == if hole.contains(&i) { 0 } else { 7 }));
    medium.ensure("a", 0, 1 << 20).expect("ensure");
    assert!(blocks() >= full && medium.read("a").expect("read") == bytes);
}

#[test]
fn directories_are_made_listed_and_synced() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.make_dir("puddles").expect("make");
    assert!(matches!(medium.make_dir("puddles"), Err(MediumError::Exists { .. })));
    for name in ["puddles/b", "puddles/a"] {
        medium.create(name, 0).expect("create");
    }
    assert_eq!(medium.list("puddles").expect("list"), ["a", "b"]);
    own(&medium).rename("puddles/a", "puddles/b").expect("rename replaces");
    assert_eq!(medium.list("puddles").expect("list"), ["b"]);
    own(&medium).remove("puddles/b").expect("remove");
    assert_eq!(medium.list("").expect("list"), ["puddles"]);
    medium.sync_dir("puddles").expect("sync");
    medium.sync_dir("").expect("sync");
    assert!(medium.sync_dir("nowhere").is_err_and(|error| error.is_not_found()));
    assert!(
        medium.exists("puddles").expect("exists") && !medium.exists("puddles/b").expect("exists")
    );
}

#[test]
fn a_missing_directory_is_created_only_on_request() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("store");
    let error = RealMedium::open(&path, &MediumOptions::default()).expect_err("missing");
    assert!(error.is_not_found() && error.to_string().contains("cenote format"), "{error}");
    let read_only = MediumOptions { create: true, read_only: true, ..MediumOptions::default() };
    assert!(RealMedium::open(&path, &read_only).is_err_and(|error| error.is_not_found()));
    let create = MediumOptions { create: true, ..MediumOptions::default() };
    for _ in 0..2 {
        RealMedium::open(&path, &create).expect("create, and again when it exists");
    }
    fs::write(dir.path().join("file"), b"").expect("write");
    let error = RealMedium::open(dir.path().join("file"), &create).expect_err("not a directory");
    assert!(error.to_string().contains("a store is a directory"), "{error}");
}

#[test]
fn a_missing_file_is_not_found_by_every_operation() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    let name = "catalog.0";
    assert!(!medium.exists(name).expect("exists"));
    for result in [
        medium.len(name).map(drop),
        medium.read(name).map(drop),
        medium.read_at(name, 0, &mut [0]).map(drop),
        own(&medium).write_at(name, 0, b"x"),
        own(&medium).truncate(name, 0),
        medium.sync(name),
        own(&medium).rename(name, "other"),
        own(&medium).remove(name),
        medium.list(name).map(drop),
    ] {
        let error = result.expect_err("there is no such file");
        assert!(error.is_not_found() && error.to_string().contains("catalog.0"), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0, "nothing was created");
}

#[test]
fn creating_never_replaces() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("superblock", 4096).expect("create");
    own(&medium).write_at("superblock", 0, b"kept").expect("write");
    assert!(matches!(medium.create("superblock", 8192), Err(MediumError::Exists { .. })));
    assert_eq!(&medium.read("superblock").expect("read")[..4], b"kept");
}

#[test]
fn links_and_pipes_are_not_files_of_a_store() {
    let dir = tempfile::tempdir().expect("directory");
    let outside = tempfile::NamedTempFile::new().expect("file");
    symlink(outside.path(), dir.path().join("link")).expect("link");
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("pipe"), pipe, rustix::fs::Mode::RUSR, 0)
        .expect("pipe");
    let medium = open(dir.path());
    medium.make_dir("dir").expect("make");
    for name in ["link", "pipe", "dir"] {
        for result in [
            medium.read(name).map(drop),
            medium.len(name).map(drop),
            own(&medium).write_at(name, 0, b"x"),
        ] {
            let error = result.expect_err(name);
            assert!(
                matches!(error, MediumError::NotAFile { .. } | MediumError::Denied { .. }),
                "{name}: {error:?}"
            );
        }
    }
    assert_eq!(
        outside.as_file().metadata().expect("metadata").len(),
        0,
        "nothing went through the link"
    );
}

#[test]
fn names_and_ranges_from_outside_are_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("a", 16).expect("create");
    for name in ["../a", "/etc/passwd", "", "a/", "a\0"] {
        assert!(matches!(medium.read(name), Err(MediumError::BadName { .. })), "{name:?}");
        assert!(
            matches!(own(&medium).rename("a", name), Err(MediumError::BadName { .. })),
            "{name:?}"
        );
    }
    assert!(matches!(
        own(&medium).write_at("a", u64::MAX, b"xx"),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(
        medium.read_at("a", u64::MAX, &mut [0; 2]),
        Err(MediumError::BadRange { .. })
    ));
    assert!(medium.create("huge", u64::MAX).is_err());
    assert!(own(&medium).truncate("a", u64::MAX).is_err());
    assert!(!medium.exists("huge").expect("exists"));
}

#[test]
fn a_file_that_claims_to_be_huge_is_an_error_and_not_an_abort() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("superblock", 0).expect("create");
    // Sparse: it has no blocks, and reading it would take a GiB of memory and more.
    own(&medium).truncate("superblock", (1 << 30) + 1).expect("truncate");
    assert!(matches!(medium.read("superblock"), Err(MediumError::BadRange { .. })));
    assert_eq!(medium.read_at("superblock", 1 << 30, &mut [1; 8]).expect("a part of it"), 1);
}

#[test]
fn a_read_only_medium_is_never_written_to() {
    let dir = tempfile::tempdir().expect("directory");
    open(dir.path()).create("superblock", 4096).expect("create");
    let changed = || {
        let metadata = fs::metadata(dir.path()).expect("metadata");
        (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec())
    };
    let before = changed();
    let medium = open_read_only(dir.path());
    assert!(medium.read_only());
    for result in [
        own(&medium).write_at("superblock", 0, b"x"),
        medium.create("new", 0),
        own(&medium).truncate("superblock", 0),
        own(&medium).rename("superblock", "new"),
        own(&medium).remove("superblock"),
        medium.make_dir("puddles"),
    ] {
        assert!(matches!(result, Err(MediumError::ReadOnly { .. })), "{result:?}");
    }
    assert_eq!(medium.read("superblock").expect("read").len(), 4096);
    assert_eq!(changed(), before, "the directory is as it was");
    assert_eq!(medium.list("").expect("list"), ["superblock"]);
}

#[test]
fn looking_for_dax_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("directory");
    let info = open(dir.path()).describe();
    assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    assert!(info.note.len() > 40 && !info.fs.is_empty(), "{info:?}");
}

#[test]
fn the_boot_and_the_time_are_told() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    assert!(!medium.boot_id().is_nil());
    assert_eq!(medium.boot_id(), open(dir.path()).boot_id());
    assert!(medium.now_s() > 1_700_000_000);
}

#[test]
fn what_the_user_may_not_read_is_denied() {
    let dir = tempfile::tempdir().expect("directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let medium = open(dir.path());
    medium.create("superblock", 4096).expect("create");
    let mode = if is_root() { 0o600 } else { 0 };
    fs::set_permissions(dir.path().join("superblock"), fs::Permissions::from_mode(mode))
        .expect("chmod");
    let check = || {
        for result in [medium.read("superblock").map(drop), own(&medium).truncate("superblock", 0)]
        {
            let error = result.expect_err("permission is lacking");
            assert!(matches!(error, MediumError::Denied { .. }), "{error:?}");
            assert!(error.to_string().contains("permission denied"), "{error}");
        }
    };
    if !is_root() {
        return check();
    }
    // The superuser is never denied: a thread of another user is.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(other, other, other).expect("become another user");
            check();
            let options = MediumOptions { create: true, ..MediumOptions::default() };
            let error = RealMedium::open(dir.path().join("new"), &options).expect_err("denied");
            assert!(error.to_string().contains("cannot be made"), "{error}");
        });
    });
    assert_eq!(medium.len("superblock").expect("len"), 4096, "nothing was truncated");
}

/// A tmpfs of one MiB, gone when dropped.
struct SmallTmpfs(tempfile::TempDir);

impl SmallTmpfs {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().expect("directory");
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, c"size=1m") {
            Ok(()) => Some(Self(dir)),
            Err(errno) => {
                println!("skipped: cannot mount a tmpfs here ({errno})");
                None
            }
        }
    }

    fn remount_read_only(&self) {
        let flags = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount_remount(self.0.path(), flags, c"").expect("remount");
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_medium_is_an_error_of_create_and_leaves_no_file() {
    let Some(tmpfs) = SmallTmpfs::mount() else { return };
    let medium = open(tmpfs.0.path());
    assert_eq!(medium.describe().kind, MediumKind::Tmpfs);
    medium.create("small", 256 << 10).expect("there is space for this");
    let error = medium.create("large", 4 << 20).expect_err("there is no space for this");
    assert!(
        matches!(error, MediumError::NoSpace { needed_bytes, .. } if needed_bytes == 4 << 20),
        "{error:?}"
    );
    assert!(error.to_string().contains("create large: no space for 4194304 bytes"), "{error}");
    assert_eq!(medium.list("").expect("list"), ["small"]);
    medium.create("medium", 512 << 10).expect("the space of the failed file is free again");
    assert!(
        own(&medium)
            .write_at("small", 0, &vec![1; 1 << 20])
            .is_err_and(|error| error.is_no_space())
    );
}

#[test]
fn a_file_system_mounted_read_only_makes_the_medium_so() {
    let Some(tmpfs) = SmallTmpfs::mount() else { return };
    open(tmpfs.0.path()).create("superblock", 4096).expect("create");
    tmpfs.remount_read_only();
    let medium = open(tmpfs.0.path());
    assert!(medium.read_only());
    assert!(matches!(medium.create("new", 0), Err(MediumError::ReadOnly { .. })));
    assert_eq!(medium.read("superblock").expect("read").len(), 4096);
}

#[test]
fn a_cleared_file_is_as_long_as_before_all_zeros_and_has_its_space() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    let len = 3 * 4096 + 100;
    medium.create("a", len).expect("create");
    let taken = std::fs::metadata(dir.path().join("a")).expect("there").blocks();
    own(&medium).write_at("a", 0, &vec![7; len as usize]).expect("write");
    own(&medium).clear("a").expect("clear");
    assert_eq!(medium.read("a").expect("read"), vec![0; len as usize]);
    let after = std::fs::metadata(dir.path().join("a")).expect("there").blocks();
    assert!(after >= taken && taken > 0, "{after} of {taken} blocks");
    medium.sync("a").expect("sync");
    medium.create("empty", 0).expect("create");
    own(&medium).clear("empty").expect("nothing to do");
    assert!(matches!(own(&medium).clear("missing"), Err(MediumError::NotFound { .. })));
    assert!((1..u64::MAX).contains(&medium.free_bytes()), "the file system tells");
}
