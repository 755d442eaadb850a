//! Options of stores and pools. The store guesses none of them.

use crate::kernel::interface::rewriter::RelocationOptions;
use cenote_atrest::Keyring;
use cenote_layout::catalog::{AtRest, DataProtection, HeapKind, PoolMode};
use cenote_layout::id::Uuid;
use cenote_medium::{Durability, MediumInfo, MediumKind};
use std::sync::Arc;
use std::time::Duration;

/// What a caller wants to do with a store or a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read and write: one process at a time.
    ReadWrite,
    /// Read and write, beside other processes that share the pool. A daemon's clients can do that;
    /// a process that has a store to itself shares no pool, and this is as [`Access::ReadWrite`]
    /// there.
    Shared,
    /// Read: any number of processes, none of which changes a byte of any file.
    ReadOnly,
}

impl Access {
    /// Whether it includes writing.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::ReadOnly
    }
}

/// What to do when something is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DamagePolicy {
    /// Refuse what is damaged, with its name: the store if its catalog is, a pool if one of its
    /// puddles is.
    #[default]
    Refuse,
    /// Open what is damaged read-only, without the damaged part. The layer of values shows such a
    /// pool as blocks only.
    ReadOnly,
    /// Leave out what is damaged. A pool with a damaged puddle opens read-only without it; a store
    /// whose catalog has lost records, or was rolled back, opens for writing, and its files are
    /// kept as they are, so that nothing more is lost. Whole pools that must be traced
    /// after a loss of power are traced without what is left out: what only that led to is given
    /// back.
    SkipDamaged,
}

/// What to do with pools that were held writable, at a durability level that does not cover it,
/// when power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PowerLossPolicy {
    /// Refuse to open them.
    #[default]
    Refuse,
    /// Open them read-only, as they are, their logs not replayed.
    ReadOnly,
    /// Replay what logs there are and open them as they are then.
    AsIs,
}

/// What to do with a copy of a store that was made while a session had it open, as `cp -a` makes
/// one, or with a store that was put back from such a copy. Its files are of different moments:
/// what they hold together may never have been.
///
/// A copy of a store that was closed is a store as any other, and no policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CopyPolicy {
    /// Refuse to open it.
    #[default]
    Refuse,
    /// Open it as after a loss of power that nothing covers: of pools that may have been in use
    /// [`PowerLossPolicy`] decides, and every pool is checked before it is handed out. An
    /// unprotected pool was not in use if all its files say that they were closed. Not while the
    /// process that has the original open lives.
    CheckAndOpen,
}

/// Bytes of a window, unless the format says otherwise. The part of the address space that windows
/// are chosen in has 768 places for windows of this length.
pub const WINDOW_LEN_DEFAULT: u64 = 64 << 30;

/// How a store is formatted.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// First address of the window, a multiple of 2 MiB. `None`: chosen from the UUID, free in
    /// this process, and not the window of a store that the user's programs have noted
    /// ([`crate::known_windows`]).
    pub window_base: Option<u64>,
    /// Bytes of the window: how much all puddles together can take. A multiple of 2 MiB. Address
    /// space only. The fewer, the more stores can be open in one process. A power of two wastes no
    /// place.
    pub window_len: u64,
    /// Identity of the store. `None`: a random one. A fixed one makes tests repeatable.
    pub uuid: Option<Uuid>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { window_base: None, window_len: WINDOW_LEN_DEFAULT, uuid: None }
    }
}

/// The promise of a process that serves clients; see [`OpenOptions::hosting`].
#[derive(Clone, Copy, Debug)]
pub struct Hosting(());

impl Hosting {
    /// The promise.
    ///
    /// # Safety
    /// Functions for clients know of leases, and not of what this process itself has open. In a
    /// store that is opened with the value, this process uses no pool and no object while a client
    /// is admitted, so that none of its references leads to what a client, a copy or a move
    /// changes; and what it says of a client (its process, its end) is true.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// What to do with a journal of the pools in shadowed mode that cannot be used: it was put back, is
/// damaged, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum JournalPolicy {
    /// Refuse the pools whose psyncs it has.
    #[default]
    Refuse,
    /// Make a new one, if the store is opened for writing, and not by a daemon. The psyncs in the
    /// old one are lost, so all pools in shadowed mode may be torn
    /// ([`crate::PoolHandle::is_torn`]), in every session, until a caller declares them whole
    /// ([`crate::Store::declare_whole`]).
    GiveUp,
}

/// What becomes of a store whose window is taken in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WindowPolicy {
    /// It opens in another window, where its puddles are rewritten when they are first touched
    /// ([`crate::relocate`]). That needs a rewriter ([`RelocationOptions::rewriter`]); without one
    /// it is as [`WindowPolicy::Fixed`].
    #[default]
    Move,
    /// It is not opened. For programs that keep addresses of the store where pointer maps do not
    /// say them: in objects, in blocks without a type, in other stores.
    Fixed,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// For writing or for reading.
    pub access: Access,
    /// How long to wait for a store that another process has open. Zero: not at all.
    pub lock_timeout: Duration,
    /// What to do when something is damaged.
    pub damage: DamagePolicy,
    /// What to do with pools that a loss of power may have torn.
    pub power_loss: PowerLossPolicy,
    /// Pools that [`PowerLossPolicy::AsIs`] is for; none: all. Of others it is as
    /// [`PowerLossPolicy::Refuse`]. One that a client's logs bind to a pool of these is decided
    /// with it: it counts as torn from then on ([`crate::PoolHandle::is_torn`]).
    pub as_is_pools: Vec<String>,
    /// What to do with a copy of an open store.
    pub copy: CopyPolicy,
    /// What to do with a journal of pools that cannot be used.
    pub journal: JournalPolicy,
    /// Durability level of commits. `None`: what the medium gives. Asking for `power` where the
    /// medium gives only `process` is refused.
    pub durability: Option<Durability>,
    /// Bytes of a log's first puddle; further ones are larger. A multiple of 4 KiB, at least 8
    /// KiB.
    pub log_puddle_size: u64,
    /// Guard logs against stray writes of the program: they are read-only at their addresses, and
    /// written through a second mapping. Costs a few mappings for each log, and an addition for
    /// each store to one. The store of a daemon's client does the same.
    pub guards: bool,
    /// Most bytes of puddles that are kept for pools to come and pools that grow, so that these
    /// need not make files. 0: none. Never more than a sixteenth of what the disk has left, and
    /// given up before an operation fails for want of space. Existing spare puddles are taken in
    /// any case.
    pub spare_bytes_max: u64,
    /// Given: this process serves others, its clients ([`crate::Store::admit`]). Clients of an
    /// earlier such process that still live keep their sessions; without it a store that has such
    /// clients is not opened.
    pub hosting: Option<Hosting>,
    /// Bytes of each half of the journal of psyncs of pools, when it is made: a multiple of 4 KiB.
    /// It grows when a psync needs more.
    pub journal_half_len: u64,
    /// How pools that have moved are rewritten: by what, and when.
    pub relocation: RelocationOptions,
    /// What becomes of a store whose window is taken in this process.
    pub window: WindowPolicy,
    /// The window is made so long, if it is shorter and the store is opened for writing: in place,
    /// if the addresses behind it are free, and otherwise as one that is taken.
    pub window_len_min: u64,
    /// The key of pools that are protected at rest, where none is given when one is opened. With
    /// it the program asks for protection: a pool or an object that has no key is refused
    /// ([`crate::StoreError::NotProtected`]), also where one would be made.
    pub key: Option<Arc<Keyring>>,
    /// Accept pools and objects without a key although [`OpenOptions::key`] is there: for tools
    /// that look at a whole store.
    pub accept_unprotected: bool,
    /// Look at all values of a pool whenever it is opened: bytes that are no value of their type
    /// make it one that is shown as blocks alone. Without it that is done where this session has
    /// found damage. It takes as long as reading the pool. The layer of values heeds it.
    pub verify_values: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            lock_timeout: Duration::ZERO,
            damage: DamagePolicy::default(),
            power_loss: PowerLossPolicy::default(),
            as_is_pools: Vec::new(),
            copy: CopyPolicy::default(),
            journal: JournalPolicy::default(),
            durability: None,
            log_puddle_size: 256 << 10,
            guards: true,
            spare_bytes_max: 32 << 20,
            hosting: None,
            journal_half_len: 4 << 20,
            relocation: RelocationOptions::default(),
            window: WindowPolicy::default(),
            window_len_min: 0,
            key: None,
            accept_unprotected: false,
            verify_values: false,
        }
    }
}

impl OpenOptions {
    /// Whether the program asks for protection, so that it must get nothing that has no key.
    pub(crate) fn asks_for_protection(&self) -> bool {
        self.key.is_some() && !self.accept_unprotected
    }

    /// What to do with this pool if a loss of power may have torn it.
    pub(crate) fn power_loss_of(&self, pool: &str) -> PowerLossPolicy {
        let named = self.as_is_pools.is_empty() || self.as_is_pools.iter().any(|name| name == pool);
        match self.power_loss {
            PowerLossPolicy::AsIs if !named => PowerLossPolicy::Refuse,
            policy => policy,
        }
    }

    /// Options of a read-only open.
    #[must_use]
    pub fn read_only() -> Self {
        Self { access: Access::ReadOnly, ..Self::default() }
    }
}

/// How a pool is created.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Its allocator.
    pub heap: HeapKind,
    /// Its mode.
    pub mode: PoolMode,
    /// Bytes of its first puddle: a multiple of 4 KiB, at least [`PoolOptions::PUDDLE_SIZE_MIN`].
    pub puddle_size: u64,
    /// Most bytes that the pool may take.
    pub size_max: u64,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// How it is protected while no process has it open. Only in [`PoolMode::Shadowed`].
    pub at_rest: AtRest,
    /// The key that it is under, in modes that have one.
    pub key: Option<Arc<Keyring>>,
    /// How its data are write-protected while a program has the pool open for writing. Only with a
    /// logged heap, and not at rest or by a daemon.
    pub protect: DataProtection,
}

impl PoolOptions {
    /// Least bytes of a heap puddle: metadata and one superblock of 64 KiB.
    pub const PUDDLE_SIZE_MIN: u64 = cenote_layout::heap::HEAP_PUDDLE_SIZE_MIN;

    /// The default for a store that lies there: in shadowed mode where a commit does not survive
    /// loss of power, but files do.
    #[must_use]
    pub fn for_medium(medium: &MediumInfo) -> Self {
        let files_survive =
            matches!(medium.kind, MediumKind::Ordinary | MediumKind::Network | MediumKind::Overlay);
        let shadowed = files_survive && medium.durability == Durability::Process;
        Self {
            mode: if shadowed { PoolMode::Shadowed } else { PoolMode::Direct },
            ..Self::default()
        }
    }
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            heap: HeapKind::Traced,
            mode: PoolMode::Direct,
            puddle_size: 2 << 20,
            size_max: u64::MAX,
            permissions: 0o600,
            at_rest: AtRest::None,
            key: None,
            protect: DataProtection::None,
        }
    }
}
