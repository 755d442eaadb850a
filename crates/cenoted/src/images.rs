//! Whether the program that began a session still runs.
//!
//! A process outlives a program that calls `exec`: its number and start time stay, and its memory
//! goes. So the daemon gives each client a descriptor that closes on `exec` and holds a byte of the
//! file `clients` in the store's directory ([`cenote_sys::held_byte`]). The session's identity
//! selects the byte. The client keeps the descriptor as long as it has anything.
//!
//! **If the byte is not held, no thread is left that could store into a mapping of the session**:
//! the kernel takes memory from a process before it closes its descriptors. A later daemon, which
//! has no connection to the client yet, finds the same.
//!
//! | the client | consequence |
//! | --- | --- |
//! | forks | the child closes its copy ([`cenote_sys::description_lock::NotForked`]) |
//! | calls a raw `clone` | the child keeps the byte held; the session ends with the process |
//! | closes the descriptor by hand, and stores on | as after a goodbye |
//! | holds the bytes of others | their sessions end with their processes |

use cenote_layout::id::Uuid;
use cenote_store::{CLIENTS, byte_of};
use cenote_sys::held_byte;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

/// The file of a store, and whether an earlier daemon made it.
#[derive(Debug)]
pub(crate) struct Images {
    file: File,
    found: bool,
}

/// What is known of a session's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It was given its byte: that tells.
    Byte,
    /// It has none: its process tells.
    None,
}

impl Images {
    /// The file in the store's directory, made if there is none.
    pub(crate) fn open(store: &Path) -> io::Result<Self> {
        let path = store.join(CLIENTS);
        let open = |new: bool| {
            OpenOptions::new().read(true).write(true).create_new(new).mode(0o600).open(&path)
        };
        match open(false) {
            Ok(file) => Ok(Self { file, found: true }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = open(true)?;
                // The store's owner may run the next daemon. Where that cannot be set, a daemon
                // says so that cannot open the file.
                let owner = std::fs::metadata(store)?;
                let _ = fchown(&file, Some(owner.uid()), Some(owner.gid()));
                Ok(Self { file, found: false })
            }
            Err(error) => Err(error),
        }
    }

    /// A descriptor for a client, to be given away, that holds its byte. `None`: the file system
    /// has no such locks.
    pub(crate) fn give(&self, client: Uuid) -> io::Result<Option<OwnedFd>> {
        // Another description of the very file: its path may name another file now.
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(held_byte::hold(file.as_fd(), byte_of(client))?.then(|| file.into()))
    }

    /// The sign that tells of clients of an earlier daemon: none, if its file is gone.
    pub(crate) fn of_earlier(&self) -> Sign {
        if self.found { Sign::Byte } else { Sign::None }
    }

    /// Whether a client's program is gone. "Yes" is certain.
    pub(crate) fn is_gone(&self, client: Uuid, sign: Sign) -> bool {
        let held = || held_byte::is_held(self.file.as_fd(), byte_of(client)).unwrap_or(true);
        sign == Sign::Byte && !held()
    }
}
