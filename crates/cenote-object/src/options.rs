//! Options for objects.

use crate::dirty::Mechanism;
use cenote_atrest::Mode;
use cenote_layout::PAGE_SIZE;

/// What an attachment may do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Read: many at a time. `psync` is ignored, as in the paper.
    Read,
    /// Read and write: one at a time.
    ReadWrite,
}

/// How a new object is made.
#[derive(Clone, Copy, Debug)]
pub struct ObjectOptions {
    /// What protects it while it is not attached. For good: another mode is another object.
    pub at_rest: Mode,
    /// Permission bits, as of a file.
    pub permissions: u32,
}

impl Default for ObjectOptions {
    /// No protection; the owner reads and writes.
    fn default() -> Self {
        Self { at_rest: Mode::None, permissions: 0o600 }
    }
}

/// Which thread brings what was psynced to the primaries, and syncs them, so that the journal's
/// space can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Trim {
    /// A thread of its own: it applies at once, and syncs as soon as a half of the journal is full.
    #[default]
    Background,
    /// The call that needs it done: a psync that needs the space, a detach, a snapshot. For tests:
    /// the work depends on the calls alone.
    Inline,
}

/// How a store's objects are used. The default is right for programs.
#[derive(Clone, Debug)]
pub struct ObjectsOptions {
    /// How written pages are found; `None`: the best that works here. A mechanism that does not
    /// work is refused at attach. Of protected objects: `Mprotect`, or `Compare` of those that
    /// are so small that all of it is there from the beginning, for which it is the best.
    pub mechanism: Option<Mechanism>,
    /// Bytes of each half of a new journal, a multiple of 4096. It grows when a psync needs more.
    pub half_len: u64,
    /// Most bytes of each half of the journal: a psync that needs more fails.
    pub half_len_max: u64,
    /// Which thread applies what was psynced, and syncs the primaries.
    pub trim: Trim,
    /// Use the primaries as they are although records are lost in a damaged journal, or the list
    /// of the states of protected objects. They may hold parts of a psync, or be of different
    /// moments.
    pub accept_damaged_journal: bool,
}

impl Default for ObjectsOptions {
    fn default() -> Self {
        Self {
            mechanism: None,
            half_len: 4 << 20,
            half_len_max: 64 << 30,
            trim: Trim::default(),
            accept_damaged_journal: false,
        }
    }
}

impl ObjectsOptions {
    /// What is wrong with them, if anything is.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.half_len < PAGE_SIZE
            || !self.half_len.is_multiple_of(PAGE_SIZE)
            || self.half_len > self.half_len_max
            || self.half_len_max > 1 << 40
        {
            return Err(
                "half_len is not a multiple of 4096 up to half_len_max, which is at most 1 TiB",
            );
        }
        Ok(())
    }
}
