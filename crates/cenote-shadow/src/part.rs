//! What the engine asks of a shadow.

use cenote_atrest::Change;
use cenote_atrest::view::{SealedError, View};
use cenote_journal::{ApplyTarget, Changes, Journal, JournalError, Pages, Primary};
use cenote_layout::id::Uuid;
use cenote_medium::MediumError;
use std::io;

/// How far a psync has come, as its parts are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsyncState {
    /// Nothing has changed yet, or it failed.
    Held,
    /// The record is about to be written.
    Drafted,
    /// The record counts.
    Durable,
}

/// A shadow that a psync takes along: an object, or a puddle.
pub trait ShadowPart {
    /// What all parts of a psync share.
    type Host: ?Sized;
    /// What fails.
    type Error: From<MediumError> + From<JournalError>;

    /// Whether a record, or a transfer, names parts of which nothing has changed, too.
    const NAMES_ALL: bool;

    /// *Held*: takes the notes of written pages and protects these; copies them, if writers go on
    /// afterwards. What an error leaves is in [`ShadowPart::pages`].
    ///
    /// # Errors
    /// What the system says.
    fn hold(&mut self, host: &Self::Host) -> Result<(), Self::Error>;

    /// Its identity.
    fn id(&self) -> Uuid;

    /// The pages that were taken, in order.
    fn pages(&self) -> &[Pages];

    /// Its memory, if it is protected at rest.
    fn view(&self) -> Option<&View>;

    /// What a record changes of it.
    ///
    /// # Errors
    /// Its file cannot be opened.
    fn target(&self, host: &Self::Host) -> Result<ApplyTarget, Self::Error>;

    /// Adds what differs from the primary, or what its sealed pages come to, as of primary
    /// `number`.
    ///
    /// # Errors
    /// The primary cannot be read; sealing fails.
    fn draft(
        &mut self,
        number: u32,
        primary: &Primary<'_>,
        changes: &mut Changes,
    ) -> Result<Option<Change>, Self::Error>;

    /// Where its shadow is mapped, of a part without protection in a daemon's client.
    fn address(&self) -> usize;

    /// The psync failed: the pages are to be psynced again.
    fn note_again(&mut self);

    /// The pages are not to be psynced again.
    fn forget(&mut self);

    /// The record is drafted; this part has `number` there.
    fn drafted(&mut self, _number: u32, _changes: &Changes) {}

    /// What the psync has come to.
    fn tell(&self, _host: &Self::Host, _state: PsyncState) {}

    /// The psync is over: what the pages hold is committed. `journal`: the record was queued there.
    ///
    /// # Errors
    /// What is committed cannot be brought to the primary.
    fn finish(&mut self, _host: &Self::Host, _j: Option<&Journal>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Nothing may be acknowledged any more.
    fn poison(host: &Self::Host, reason: &str);

    /// A record of so many bytes is too large.
    fn too_large(host: &Self::Host, needed: u64) -> Self::Error;

    /// Why sealed memory failed.
    fn sealed(&self, error: SealedError) -> Self::Error;

    /// Why a committed record was not applied.
    fn not_copied(&self, error: JournalError) -> Self::Error;

    /// Why a transfer was not made.
    fn unpacked(&self, error: io::Error) -> Self::Error;
}
