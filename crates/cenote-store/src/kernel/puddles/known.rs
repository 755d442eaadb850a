//! Windows of the stores that this user's programs made or opened: a hint for the choice of a new
//! one.
//!
//! The file is `cenote/windows` under `$XDG_STATE_HOME`, or under `~/.local/state`. Each line is
//! base and bytes of one window in hexadecimal digits, and nothing else: no path, no name, no
//! identity, no time. It is readable by its user alone.
//!
//! **Advisory only.** No correctness depends on the list. A line too many makes one place less
//! likely. A missing line may let a window be chosen that another store has: one of the two moves
//! when both meet. So errors are ignored, there is no lock, and nothing is synced. Invariants:
//!
//! * A line is appended by one `write` to a file open for appending, so lines of several processes
//!   do not mix.
//! * A line that cannot be read (torn, edited) is skipped.
//! * A file of more than [`LINES_MAX`] lines is replaced by its last half, and one with the window
//!   of a store that `cenote rm --store` removes by one without it, by renaming. Lines that another
//!   process appends meanwhile may be lost; their stores note them again when they are opened.
//! * Nothing is written where the directory above belongs to another user, as under `sudo`.

use cenote_layout::SLOT_SIZE;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Lines that are kept.
const LINES_MAX: usize = 4096;
/// Bytes of a line: two numbers of 16 digits, a space and a newline.
const LINE_LEN: usize = 34;

/// The file, if the environment says where.
#[must_use]
pub fn known_windows_file() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("cenote").join("windows"))
}

/// Base and bytes of the windows that are noted, the last one last.
#[must_use]
pub fn known_windows() -> Vec<(u64, u64)> {
    read()
}

pub(crate) fn read() -> Vec<(u64, u64)> {
    known_windows_file().map_or_else(Vec::new, |path| read_from(&path))
}

/// Takes a window out, because its store was removed. Another store that has the same one notes it
/// again when it is opened.
pub fn forget_window(base: u64, len: u64) {
    if let Some(path) = known_windows_file() {
        let _ = forget_in(&path, base, len);
    }
}

pub(crate) fn note(base: u64, len: u64) {
    if let Some(path) = known_windows_file() {
        let _ = note_in(&path, base, len);
    }
}

fn read_from(path: &Path) -> Vec<(u64, u64)> {
    // Longer than it can be: not ours.
    let is_ours = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.len() <= (4 * LINES_MAX * LINE_LEN) as u64)
    };
    let text = if is_ours(path) { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&text).lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let (base, len) = line.split_once(' ')?;
    let (base, len) = (u64::from_str_radix(base, 16).ok()?, u64::from_str_radix(len, 16).ok()?);
    let can_be = |at: u64| at != 0 && at.is_multiple_of(SLOT_SIZE);
    (can_be(base) && can_be(len) && base.checked_add(len)? <= 1 << 47).then_some((base, len))
}

fn line(base: u64, len: u64) -> String {
    format!("{base:016x} {len:016x}\n")
}

/// Appends a window, unless it is noted.
fn note_in(path: &Path, base: u64, len: u64) -> std::io::Result<()> {
    let mut known = read_from(path);
    if known.contains(&(base, len)) {
        return Ok(());
    }
    let Some(dir) = path.parent() else { return Ok(()) };
    let there = dir.ancestors().find(|dir| dir.exists());
    let us = cenote_sys::process::uid();
    if there.is_none_or(|dir| std::fs::metadata(dir).is_ok_and(|found| found.uid() != us)) {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    if known.len() < LINES_MAX {
        return options.append(true).open(path)?.write_all(line(base, len).as_bytes());
    }
    known.push((base, len));
    replace(path, &known[LINES_MAX / 2..])
}

/// Takes a window out. A file that does not have it is not touched.
fn forget_in(path: &Path, base: u64, len: u64) -> std::io::Result<()> {
    let mut known = read_from(path);
    if !known.contains(&(base, len)) {
        return Ok(());
    }
    known.retain(|window| *window != (base, len));
    replace(path, &known)
}

/// Replaces the file, by renaming.
fn replace(path: &Path, windows: &[(u64, u64)]) -> std::io::Result<()> {
    let text: String = windows.iter().map(|(base, len)| line(*base, *len)).collect();
    let new = path.with_extension(format!("new{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600).write(true).truncate(true);
    options.open(&new)?.write_all(text.as_bytes())?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("cenote-known-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir.join("state/cenote/windows")
    }

    fn remove(path: &Path) {
        let dir = path.ancestors().nth(3).expect("made by `file`");
        std::fs::remove_dir_all(dir).expect("it is there");
    }

    #[test]
    fn what_is_noted_is_read_once_each_and_by_its_user_alone() {
        let path = file("noted");
        assert_eq!(read_from(&path), []);
        for at in [1, 2, 1, 3, 2] {
            note_in(&path, at << 40, 1 << 36).unwrap();
        }
        assert_eq!(read_from(&path), [1, 2, 3].map(|at| (at << 40, 1 << 36)));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        // Nothing but numbers: no path, no name.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.chars().all(|c| c.is_ascii_hexdigit() || c == ' ' || c == '\n'), "{text}");
        remove(&path);
    }

    #[test]
    fn lines_that_are_no_windows_are_skipped_and_later_ones_noted() {
        let path = file("lines");
        note_in(&path, 1 << 40, 1 << 36).unwrap();
        let good = std::fs::read(&path).unwrap();
        for cut in 0..good.len() {
            let nonsense = [
                &good[..],
                b"\xff\xfe 3\n0 0\nffffffffffffffff 200000\n3 4\n",
                &good[..cut],
                b"\n",
            ];
            std::fs::write(&path, nonsense.concat()).unwrap();
            note_in(&path, 2 << 40, 1 << 36).unwrap();
            let read = read_from(&path);
            assert_eq!(
                (read.first(), read.last()),
                (Some(&(1 << 40, 1 << 36)), Some(&(2 << 40, 1 << 36)))
            );
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(note_in(&path, 1 << 40, 1 << 36).is_err());
        assert_eq!(read_from(&path), []);
        remove(&path);
    }

    #[test]
    fn a_window_that_is_forgotten_is_gone_and_the_others_stay() {
        let path = file("forgotten");
        forget_in(&path, 1 << 40, 1 << 36).unwrap();
        assert!(!path.exists(), "nothing is made to forget");
        for at in 1..5 {
            note_in(&path, at << 40, 1 << 36).unwrap();
        }
        forget_in(&path, 3 << 40, 1 << 36).unwrap();
        forget_in(&path, 3 << 40, 1 << 36).unwrap();
        forget_in(&path, 4 << 40, 1 << 30).unwrap();
        assert_eq!(read_from(&path), [1, 2, 4].map(|at| (at << 40, 1 << 36)));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        remove(&path);
    }

    #[test]
    fn a_long_file_keeps_its_last_half() {
        let path = file("long");
        let count = LINES_MAX as u64 + 10;
        note_in(&path, SLOT_SIZE, SLOT_SIZE).unwrap();
        let all: String =
            (1..=LINES_MAX as u64).map(|at| line(at * SLOT_SIZE, SLOT_SIZE)).collect();
        std::fs::write(&path, all).unwrap();
        for at in LINES_MAX as u64 + 1..=count {
            note_in(&path, at * SLOT_SIZE, SLOT_SIZE).unwrap();
        }
        let read = read_from(&path);
        assert_eq!(read.first(), Some(&((LINES_MAX as u64 / 2 + 1) * SLOT_SIZE, SLOT_SIZE)));
        assert_eq!(read.last(), Some(&(count * SLOT_SIZE, SLOT_SIZE)));
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "nothing is left of the replacing");
        remove(&path);
    }

    #[test]
    fn processes_that_note_at_once_lose_no_line() {
        let path = file("threads");
        note_in(&path, 1 << 40, 1 << 30).unwrap();
        std::thread::scope(|scope| {
            for thread in 1..5u64 {
                let path = &path;
                scope.spawn(move || {
                    (1..100)
                        .for_each(|at| note_in(path, thread << 42 | at << 30, 1 << 30).unwrap());
                });
            }
        });
        assert_eq!(read_from(&path).len(), 1 + 4 * 99);
        remove(&path);
    }
}
