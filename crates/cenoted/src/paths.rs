//! Paths that the daemon takes for itself: its sockets', and the store's directory.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::config::StartError;

/// Removes a socket that a dead daemon left. The store's lock was taken before: no daemon of this
/// store listens there.
pub(crate) fn make_room(socket: &Path, answers: impl Fn(&Path) -> bool) -> Result<(), StartError> {
    let Ok(found) = std::fs::symlink_metadata(socket) else { return Ok(()) };
    let path = || socket.to_path_buf();
    if !found.file_type().is_socket() {
        let source = io::ErrorKind::AlreadyExists.into();
        return Err(StartError::Path {
            path: path(),
            advice: "it is no socket: choose another path",
            source,
        });
    }
    if answers(socket) {
        return Err(StartError::SocketTaken { path: path() });
    }
    std::fs::remove_file(socket).map_err(|source| StartError::Path {
        path: path(),
        advice: "a dead daemon's socket cannot be removed",
        source,
    })
}

/// Takes the rights of others from the store's directory and files. The directory's would do
/// against opening by path; but a descriptor that was handed out for reading could be opened again
/// for writing through `/proc/self/fd` by any user whom the file's own mode lets.
pub(crate) fn close_to_others(dir: &Path) -> Result<(), StartError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StartError::Path {
            path,
            advice: "the daemon's user must own the store",
            source,
        }
    };
    for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let found = std::fs::symlink_metadata(&path).map_err(failed(&path))?;
        if found.is_dir() {
            close_to_others(&path)?;
        } else if found.is_file() && found.permissions().mode() & 0o177 != 0 {
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))
                .map_err(failed(&path))?;
        }
    }
    std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed(dir))
}
