use super::*;

#[test]
fn after_a_failed_sync_no_sync_succeeds() {
    let dir = tempfile::tempdir().expect("directory");
    let fd = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .expect("open");
    let files = Files::new(fd, true, true, false);
    files.create("a", 4096).expect("create");
    files.sync("a").expect("a sync that works");
    let failed = files.finish_sync(Operation::Sync, "a", Err(Errno::IO.into()));
    assert!(matches!(failed, Err(MediumError::Io { .. })), "{failed:?}");
    files.write_at("a", 0, b"x").expect("write");
    assert!(matches!(files.sync("a"), Err(MediumError::SyncFailedBefore { .. })));
    assert!(matches!(files.sync_dir(""), Err(MediumError::SyncFailedBefore { .. })));
}

#[test]
fn what_was_written_is_synced_through_the_descriptor_that_wrote_it() {
    let dir = tempfile::tempdir().expect("directory");
    let fd = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .expect("open");
    let files = Files::new(fd, true, true, false);
    let kept = |name: &str| files.unsynced().contains_key(name);
    files.create("lock", 0).expect("create");
    assert!(!kept("lock"), "a lock file is not kept open");
    files.create("a", 4096).expect("create");
    assert!(kept("a"));
    files.sync("a").expect("sync");
    assert!(!kept("a"));
    files.write_at("a", 0, b"x").expect("write");
    files.rename("a", "b").expect("rename");
    assert!(kept("b") && !kept("a"));
    files.sync("b").expect("sync");
    files.write_at("b", 0, b"y").expect("write");
    files.remove("b").expect("remove");
    assert!(!kept("b"));
}

#[test]
fn interrupted_steps_become_shorter_and_end_with_the_error() {
    let (mut taken, mut calls) = (0, 0);
    let all = in_steps(100 << 20, |at, step| {
        calls += 1;
        assert_eq!(at, taken);
        if step > 1 << 20 {
            return Err(Errno::INTR);
        }
        taken += step;
        Ok(())
    });
    assert_eq!((all, taken, calls), (Ok(()), 100 << 20, 106));
    assert_eq!(in_steps(100 << 20, |_, _| Err(Errno::INTR)), Err(Errno::INTR));
}

#[test]
fn where_there_is_no_fallocate_space_is_taken_by_writing() {
    let file = tempfile::tempfile().expect("file");
    write_zeros(&file, 0, (1 << 20) + 512).expect("zeros");
    assert_eq!(file.metadata().expect("metadata").len(), (1 << 20) + 512);
}
