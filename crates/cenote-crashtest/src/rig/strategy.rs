//! Ways to log, of which a rig takes one.

/// How "set" writes, and with how many logs and threads: this decides which ways of committing are
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// What it is called in reports.
    pub name: &'static str,
    /// Logs in use. With one, commits are sealed and finished lazily. With two, transactions take
    /// turns, each log in its thread; the second log comes into use with the second
    /// transaction, so that the first one was lazy.
    pub logs: usize,
    /// The words that are overwritten: in place, deferred, or one this way and one that way.
    pub write: Write,
    /// "set" also overwrites the wide array, whose log entries do not fit into one segment.
    pub wide: bool,
    /// The log's sequence numbers run out with the second transaction.
    pub wrap: bool,
}

/// How a word is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// In place, after its undo entry.
    Undo,
    /// Deferred to commit.
    Redo,
    /// The first word in place, the second deferred.
    Hybrid,
}

impl Strategy {
    /// One log, undo: sealed commits, lazily finished; marked for what is too much to hash.
    pub const LAZY: Self =
        Self { name: "sealed, lazy", logs: 1, write: Write::Undo, wide: false, wrap: false };
    /// Two logs, undo: marked commits.
    pub const MARKED: Self =
        Self { name: "marked", logs: 2, write: Write::Undo, wide: false, wrap: false };
    /// One log, redo.
    pub const REDO: Self =
        Self { name: "redo, lazy", logs: 1, write: Write::Redo, wide: false, wrap: false };
    /// Two logs, redo: sealed, not lazy.
    pub const REDO_TWO_LOGS: Self =
        Self { name: "redo, two logs", logs: 2, write: Write::Redo, wide: false, wrap: false };
    /// Undo and redo in one transaction.
    pub const HYBRID: Self =
        Self { name: "hybrid", logs: 1, write: Write::Hybrid, wide: false, wrap: false };
    /// Undo entries that span several segments.
    pub const SPANNING: Self =
        Self { name: "spanning undo", logs: 1, write: Write::Undo, wide: true, wrap: false };
    /// Redo entries that span several segments.
    pub const SPANNING_REDO: Self =
        Self { name: "spanning redo", logs: 1, write: Write::Redo, wide: true, wrap: false };
    /// Undo, one log whose sequence numbers start again in the next epoch.
    pub const WRAPPING: Self =
        Self { name: "next epoch", logs: 1, write: Write::Undo, wide: false, wrap: true };

    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::LAZY,
        Self::MARKED,
        Self::REDO,
        Self::REDO_TWO_LOGS,
        Self::HYBRID,
        Self::SPANNING,
        Self::SPANNING_REDO,
        Self::WRAPPING,
    ];
}
