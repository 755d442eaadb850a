//! Marks files of objects without protection before they are written.
//!
//! A protected object by itself shows a file of another moment. Any other has a stamp in its
//! puddle's header, as files of unprotected pools have (`stamps.rs` of `cenote-store`). The primary
//! is copied and put back; its stamp says:
//!
//! | | stamp |
//! | --- | --- |
//! | made or restored, never attached for writing | 0 |
//! | *marked*: a session may write it, or was writing it | the session's era |
//! | *sealed*: none has since a close | the close's seal, which the catalog names |
//!
//! *Marked* by an attach for writing (for a daemon's client by the daemon), once in a session,
//! before the header names the writer; and by recovery, before it replays a psync. A psync marks
//! nothing: its object is attached. *Sealed* by the store's close, after the journal has brought
//! all psyncs to the primaries, because the last handle of the objects goes before the store does.
//! The store's close syncs the file. **Its superblock's sync commits**: until then the era is
//! accepted, and so are its seals.
//!
//! Compared by all that looks at an object's file before it is used ([`Store::verify_object`]):
//! attach, snapshot, replay, a grant by a daemon; and by a look at all files, and a backup.
//!
//! The header's state is no such stamp: a session that is killed leaves "attached for writing", and
//! sessions that do not use the object close the store properly after it.
//!
//! [`Store::verify_object`]: cenote_store::Store::verify_object

use crate::error::ObjectError;
use crate::shared::Shared;
use cenote_medium::FileHandle;
use cenote_store::{ObjectInfo, StoreError};

impl Shared {
    /// An object's file, which recovery is about to write.
    pub(crate) fn primary_to_replay(&self, info: &ObjectInfo) -> Result<FileHandle, ObjectError> {
        self.store.verify_object(info).map_err(|error| match error {
            StoreError::ObjectDamaged { name, detail } => {
                ObjectError::PrimaryDamaged { name, detail }
            }
            error => error.into(),
        })?;
        let primary = FileHandle::open(self.files(), &info.file())?;
        self.store.mark_object(info, &primary)?;
        Ok(primary)
    }
}
