//! File systems that tests mount for themselves, where they may.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part

use std::path::Path;
use std::process::Command;

/// A file system of a test's own, unmounted when dropped.
pub struct Mounted {
    place: tempfile::TempDir,
    /// What it lies in.
    file: Option<tempfile::TempDir>,
}

impl Mounted {
    /// One in memory, of so many bytes. `Err`: why there is none.
    pub fn memory(size: &str) -> Result<Self, String> {
        let place = directory()?;
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(place.path()))?;
        Ok(Self { place, file: None })
    }

    /// One whose files can share blocks, in a file of so many bytes. `Err`: why there is none.
    pub fn sharing(bytes: u64) -> Result<Self, String> {
        // In memory if all of it has room there: each sync of a file system in a file on a disk is
        // several of the disk's.
        let holder = match free("/dev/shm") {
            Some(room) if room >= bytes => tempfile::tempdir_in("/dev/shm"),
            _ => tempfile::tempdir(),
        };
        let (place, holder) = (directory()?, holder.map_err(|error| error.to_string())?);
        let file = holder.path().join("blocks");
        std::fs::File::create(&file)
            .and_then(|file| file.set_len(bytes))
            .map_err(|error| error.to_string())?;
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&file))?;
        run(Command::new("mount").args(["-t", "xfs", "-o", "loop"]).arg(&file).arg(place.path()))?;
        Ok(Self { place, file: Some(holder) })
    }

    /// The file system stops as if its disk were gone, and is mounted again.
    pub fn shut_down_and_mount_again(&mut self) {
        let holder = self.file.as_ref().expect("in a file");
        let done = Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(self.path()).status();
        assert!(done.expect("xfs_io").success());
        run(Command::new("umount").arg(self.path())).expect("umount");
        let file = holder.path().join("blocks");
        run(Command::new("mount").args(["-t", "xfs", "-o", "loop"]).arg(&file).arg(self.path()))
            .expect("mount");
    }

    pub fn path(&self) -> &Path {
        self.place.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// Runs a command; `Err`: why it did nothing.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Err(error) => Err(format!("{name} cannot be run: {error}")),
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("{name}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// Bytes that are free in a file system.
fn free(path: &str) -> Option<u64> {
    let told = Command::new("df").args(["--output=avail", "-B1", path]).output().ok()?;
    String::from_utf8_lossy(&told.stdout).lines().last()?.trim().parse().ok()
}

fn directory() -> Result<tempfile::TempDir, String> {
    tempfile::tempdir().map_err(|error| error.to_string())
}
