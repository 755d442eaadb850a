//! Faults in the guards of metadata, roots and logs.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardBug {
    /// Guarded metadata stay writable at the pool's address.
    GuardsOpen,
    /// Pages beside metadata keep their access.
    GuardPagesOpen,
    /// A heap does not note what it stores through another mapping of a pool in shadowed mode.
    ShadowedStoreNotNoted,
    /// A psync protects the first mapping of the pages whose notes it took, and not the second.
    TwinNotProtected,
    /// A fault handler does not say which page it makes writable.
    OpeningNotSaid,
    /// Logs of a session stay writable at their addresses.
    LogsOpen,
    /// Metadata of a traced heap stay writable at the pool's address.
    TracedOpen,
    /// An allocation marks its block at the pool's address.
    MarkStoredOpenly,
    /// An abort puts a root back at the pool's address.
    RootRestoredOpenly,
    /// A store of no writer opens a page of protected data.
    StrayOpened,
    /// The last writer of a page of protected data makes no request.
    LeaveNotQueued,
    /// A batch takes a page of protected data from its writer.
    WriterIgnored,
    /// A transaction that has ended keeps open the pages that it stored into.
    CommitKeepsOpen,
    /// A request that finds its queue full is forgotten.
    OverflowForgotten,
}
