//! An archive in a file: it gets its name when it is whole and on the disk.
//!
//! 1. A file `.NAME.PID-NUMBER.part` beside it is made and filled.
//! 2. It is synced.
//! 3. **It is renamed**, which fails if there is a file of that name.
//! 4. The directory is synced.
//!
//! An error removes the first file. So does a caller that stops the export, at a signal for
//! instance. A process that is killed leaves the `.part` file.

use super::ArchivingError;
use cenote_medium::planted::{Bug, planted};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a file that is there already may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Exclusive {
    /// No: that is an error.
    #[default]
    New,
    /// Yes, by one renaming.
    Replace,
}

/// Removes the unfinished file, unless it has its name.
struct UnfinishedFile(Option<PathBuf>);

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes the file of this path by `write`.
///
/// # Errors
/// It is there already; it cannot be made, synced or renamed; what `write` says. Then there is no
/// file.
pub fn to_file<R>(
    path: &Path,
    exclusive: Exclusive,
    write: impl FnOnce(&File) -> Result<R, ArchivingError>,
) -> Result<R, ArchivingError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let failed = |what| {
        move |source: io::Error| ArchivingError::File {
            what,
            file: path.display().to_string(),
            source,
        }
    };
    if exclusive == Exclusive::New && path.symlink_metadata().is_ok() {
        // Before the work, not after it.
        return Err(ArchivingError::Exists { file: path.display().to_string() });
    }
    let Some(name) = path.file_name() else {
        return Err(failed("make")(io::ErrorKind::InvalidInput.into()));
    };
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{}-{number}.part", std::process::id()));
    let part = if planted(Bug::ArchiveNamedEarly) { path.to_owned() } else { parent.join(part) };
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(&part);
    let file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ArchivingError::NoDirectory {
            file: path.display().to_string(),
            directory: parent.display().to_string(),
        },
        _ => failed("make")(source),
    })?;
    let mut guard = UnfinishedFile(Some(part.clone()));
    let made = write(&file)?;
    file.sync_all().map_err(failed("sync"))?;
    let renamed = match exclusive {
        Exclusive::Replace => std::fs::rename(&part, path),
        Exclusive::New => match renameat_with(CWD, &part, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {
                return Err(ArchivingError::Exists { file: path.display().to_string() });
            }
            // A file system that cannot do that: a link does not replace either.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&part, path),
            renamed => renamed.map_err(io::Error::from),
        },
    };
    renamed.map_err(failed("name"))?;
    if part.symlink_metadata().is_err() {
        guard.0 = None;
    }
    drop(guard);
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync the directory of"))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_medium::planted::plant;
    use std::io::Write as _;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("it is there");
        entries
            .map(|entry| entry.expect("it is there").file_name().into_string().expect("ASCII"))
            .collect()
    }

    #[test]
    fn an_archive_that_has_its_name_early_is_found() {
        let directory = tempfile::tempdir().expect("it can be made");
        let path = directory.path().join("a");
        let seen = |bug| {
            plant(bug);
            let mut seen = false;
            let _ = to_file(&path, Exclusive::Replace, |_| {
                seen = path.exists();
                Err::<(), _>(ArchivingError::Stopped)
            });
            plant(Bug::None);
            seen
        };
        assert!(seen(Bug::ArchiveNamedEarly) && !seen(Bug::None));
    }

    #[test]
    fn a_directory_that_is_missing_is_named() {
        let directory = tempfile::tempdir().expect("it can be made");
        let path = directory.path().join("missing/a");
        let error =
            to_file(&path, Exclusive::New, |_| Ok(())).expect_err("there is no such directory");
        let text = error.to_string();
        assert!(matches!(error, ArchivingError::NoDirectory { .. }), "{text}");
        assert!(text.contains("no directory") && text.contains("make it first"), "{text}");
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let directory = tempfile::tempdir().expect("it can be made");
        let path = directory.path().join("a");
        let failed = to_file(&path, Exclusive::New, |mut file| {
            file.write_all(b"half").expect("it can be written");
            assert_eq!(names(directory.path()).len(), 1);
            assert!(!path.exists());
            Err::<(), _>(ArchivingError::Stopped)
        });
        assert!(matches!(failed, Err(ArchivingError::Stopped)));
        assert!(names(directory.path()).is_empty(), "an error leaves nothing");
        let text = |mut file: &File, text: &[u8]| {
            file.write_all(text).map_err(|_| ArchivingError::Stopped)
        };
        to_file(&path, Exclusive::New, |file| text(file, b"first")).expect("there is none");
        let again = to_file(&path, Exclusive::New, |file| text(file, b"second"));
        assert!(matches!(again, Err(ArchivingError::Exists { .. })));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"first");
        to_file(&path, Exclusive::Replace, |file| text(file, b"second"))
            .expect("it may be replaced");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"second");
        assert_eq!(names(directory.path()), ["a"]);
    }
}
