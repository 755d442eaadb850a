//! Operations of several steps that fail after the first: their transaction can only abort.
//!
//! An operation that changes one value logs it first, so that it happens or not. One that has to do
//! more than one thing that can fail (it frees many blocks, or gives back what it allocated where
//! it fails) does these in `Tx::all_or_abort` or `Tx::attempt`. A log with no room for the rest of
//! it has none for going back either: the transaction as a whole goes back, also if its body
//! ignores the error.

use crate::error::{Error, Result};
use cenote_medium::planted::{Bug, planted};

/// What of a transaction is half done.
#[derive(Debug, Default)]
pub(crate) struct HalfDone {
    /// Operations that have begun, and not ended.
    count: u32,
    /// Why the first one did not end; `None`: it panicked.
    why: Option<Box<str>>,
    /// How many blocks the transaction had allocated when an owner or a name was last given one.
    pub(crate) linked: usize,
}

impl HalfDone {
    /// Whether nothing is half done.
    #[inline]
    pub(crate) fn refuse(&self) -> Result<()> {
        if self.count == 0 || planted(Bug::HalfDoneCommitted) { Ok(()) } else { Err(self.error()) }
    }

    #[cold]
    fn error(&self) -> Error {
        let why = self.why.as_deref().unwrap_or("it panicked");
        Error::HalfDone { why: why.to_string() }
    }

    #[inline]
    pub(crate) fn begin(&mut self) {
        self.count += 1;
    }

    #[inline]
    pub(crate) fn end(&mut self) {
        self.count -= 1;
    }

    #[cold]
    pub(crate) fn failed(&mut self, error: &Error) {
        self.why.get_or_insert_with(|| error.to_string().into());
    }
}
