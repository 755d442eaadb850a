//! The requests of a client to the daemon that keeps its store, and what the daemon grants.

use crate::backed_up::BackedUp;
use crate::credentials::PermissionChange;
use crate::gate::Psync;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::{Access, PoolOptions};
use crate::kernel::interface::report::PoolStart;
use crate::log_decision::{LogDecision, UndecidedLogs};
use crate::manifest::ImportManifest;
use crate::object_info::{ListedObject, NewObject, ObjectInfo};
use cenote_layout::catalog::{PoolRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_medium::{Durability, MediumInfo};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A puddle that a client was given: its record, and its file, opened for what the client may do.
#[derive(Debug)]
pub struct Granted {
    /// What the catalog says.
    pub record: PuddleRecord,
    /// The file.
    pub file: File,
}

/// A pool that a client was given.
#[derive(Debug)]
pub struct Grant {
    /// What the catalog says.
    pub record: PoolRecord,
    /// All its puddles, in index order.
    pub puddles: Vec<Granted>,
    /// How the client finds it.
    pub start: PoolStart,
    /// Whether its heap must be traced first.
    pub trace_due: bool,
    /// Why its values may not be what its transactions made them; see
    /// [`crate::PoolHandle::doubts`].
    pub doubts: Vec<String>,
    /// The daemon's name for this process, if the pool is granted to others for writing too.
    pub member: Option<u64>,
    /// How many types the store knows: a client that knows fewer asks for them.
    pub types: u64,
}

/// The processes that have a shared pool.
#[derive(Clone, Debug, Default)]
pub struct MemberList {
    /// Names of the images ([`cenote_sys::process::name_of`]) that have it, and live or have logs
    /// that are not replayed yet.
    pub living: Vec<u64>,
    /// Why its values may not be what its transactions made them.
    pub doubts: Vec<String>,
}

/// A pool as the daemon lists it.
#[derive(Clone, Debug)]
pub struct PoolListing {
    /// What the catalog says.
    pub record: PoolRecord,
    /// Bytes of its puddles.
    pub bytes: u64,
    /// Number of its puddles.
    pub puddles: u64,
}

/// What a client learns when it is admitted.
#[derive(Clone, Debug)]
pub struct Home {
    /// Its identity.
    pub client: Uuid,
    /// The store's.
    pub store: Uuid,
    /// First address of the window.
    pub window_base: u64,
    /// Bytes of the window.
    pub window_len: u64,
    /// What the store lies on.
    pub medium: MediumInfo,
    /// Durability level of commits.
    pub durability: Durability,
}

/// Asks the daemon. Every method waits for the answer. The answer is as durable as that of the same
/// operation of an embedded store.
pub trait DaemonApi: Send + Sync + core::fmt::Debug {
    /// Creates a pool, under the caller's ids.
    ///
    /// # Errors
    /// As [`crate::Store::create_pool`]; the daemon cannot be reached.
    fn create_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId, StoreError>;
    /// Removes a pool.
    ///
    /// # Errors
    /// As [`crate::Store::remove_pool`]; the caller is not its owner.
    fn remove_pool(&self, name: &str) -> Result<(), StoreError>;
    /// All pools.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn pools(&self) -> Result<Vec<PoolListing>, StoreError>;
    /// Grants a pool with all its puddles.
    ///
    /// # Errors
    /// As [`crate::Store::open_pool`]; its permissions do not allow it; another process has it, and
    /// one of the two writes.
    fn open_pool(&self, name: &str, access: Access) -> Result<Grant, StoreError>;
    /// Grants a pool that the caller writes one more puddle, its number `index`, for blocks or for
    /// metadata.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::take_puddle`].
    fn take_puddle(
        &self,
        pool: PoolId,
        index: u32,
        size: u64,
        role: Role,
    ) -> Result<Granted, StoreError>;
    /// Grants the puddles of a pool that the caller has, from number `first` on.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn puddles_from(&self, pool: PoolId, first: u32) -> Result<Vec<Granted>, StoreError>;
    /// The processes that have a pool which the caller shares. Those that have ended are recovered
    /// before the answer. `patient`: a daemon that has ended is waited for.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn members(&self, pool: PoolId, patient: bool) -> Result<MemberList, StoreError>;
    /// Grants the caller's log space (made the first time, with its header) or a further puddle for
    /// a log.
    ///
    /// # Errors
    /// As [`crate::Store::acquire_log`].
    fn log_puddle(&self, role: Role, size: u64) -> Result<Granted, StoreError>;
    /// Registers types.
    ///
    /// # Errors
    /// As [`crate::Store::register_types`].
    fn register_types(&self, records: &[&TypeRecord]) -> Result<(), StoreError>;
    /// All types.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn types(&self) -> Result<Vec<TypeRecord>, StoreError>;
    /// Says that a pool has been traced.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::trace_done`].
    fn trace_done(&self, pool: PoolId) -> Result<(), StoreError>;
    /// Takes space for a part of a puddle of a pool that the caller writes.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::ensure_space`].
    fn ensure_space(&self, pool: PoolId, addr: u64, len: u64) -> Result<(), StoreError>;
    /// Changes a pool's owner, group or mode.
    ///
    /// # Errors
    /// As [`crate::Store::set_permissions`].
    fn set_permissions(&self, name: &str, change: PermissionChange) -> Result<(), StoreError>;
    /// Clients whose logs are set aside, and about which the caller may decide.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn undecided_logs(&self) -> Result<Vec<UndecidedLogs>, StoreError>;
    /// Decides about the logs of one of them.
    ///
    /// # Errors
    /// As [`crate::Store::decide_logs`].
    fn decide_logs(&self, client: Uuid, decision: LogDecision) -> Result<(), StoreError>;
    /// Says that a torn pool is whole.
    ///
    /// # Errors
    /// As [`crate::Store::declare_whole`].
    fn declare_whole(&self, name: &str) -> Result<(), StoreError>;
    /// The primaries of a granted pool in shadowed mode, to be read, from number `first` on: what
    /// its last psync left, all of it in the files.
    ///
    /// # Errors
    /// The caller does not write it; the daemon cannot be reached.
    fn primaries_from(&self, pool: PoolId, first: u32) -> Result<Vec<Granted>, StoreError>;
    /// Psyncs puddles of pools in shadowed mode that the caller writes: lines of `runs` primaries
    /// by their place in `puddles`, in `transfer` ([`cenote_journal::Transfer`]).
    ///
    /// # Errors
    /// As [`crate::Psyncing::commit`].
    fn psync_pools(
        &self,
        puddles: &[Uuid],
        runs: u32,
        transfer: &File,
    ) -> Result<Psync, StoreError>;
    /// All objects, or the one of this name.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`]; the daemon cannot be reached.
    fn objects(&self, name: Option<&str>) -> Result<Vec<ListedObject>, StoreError>;
    /// Creates an object, under the caller's ids.
    ///
    /// # Errors
    /// As [`crate::Store::create_object`].
    fn create_object(&self, new: &NewObject) -> Result<ObjectInfo, StoreError>;
    /// Removes an object.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`], [`StoreError::ObjectBusy`], [`StoreError::ObjectDenied`].
    fn destroy_object(&self, name: &str) -> Result<(), StoreError>;
    /// Attaches an object: its file can be read, for writers too.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`], [`StoreError::ObjectBusy`], [`StoreError::ObjectDenied`]; a
    /// damaged file.
    fn attach_object(&self, name: &str, writable: bool)
    -> Result<(ListedObject, File), StoreError>;
    /// Gives an object back.
    ///
    /// # Errors
    /// The daemon cannot be reached; what was psynced could not be brought to the object's file.
    fn detach_object(&self, object: Uuid) -> Result<(), StoreError>;
    /// Psyncs objects that the caller has attached for writing; as [`DaemonApi::psync_pools`].
    /// `settled`: on return their files hold it.
    ///
    /// # Errors
    /// As of a psync of an embedded store.
    fn psync_objects(
        &self,
        objects: &[Uuid],
        runs: u32,
        settled: bool,
        transfer: &File,
    ) -> Result<Psync, StoreError>;
    /// Changes an object's owner, group or mode.
    ///
    /// # Errors
    /// As [`crate::Store::set_object_owner`].
    fn set_object_owner(&self, name: &str, change: PermissionChange) -> Result<(), StoreError>;
    /// Grants a pool for reading, without its puddles; see [`DaemonApi::page_of_puddles`].
    ///
    /// # Errors
    /// As [`DaemonApi::open_pool`].
    fn grant_to_read(&self, name: &str) -> Result<PoolRecord, StoreError>;
    /// Some puddles of a pool that the caller has, from number `first` on, and whether there are
    /// more.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn page_of_puddles(&self, pool: PoolId, first: u32)
    -> Result<(Vec<Granted>, bool), StoreError>;
    /// Where the puddles of all pools lie; identities are left out.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn places(&self) -> Result<Vec<PuddleRecord>, StoreError>;
    /// Copies a pool: the copy's number, whether it moved, and puddles that are to be rewritten.
    ///
    /// # Errors
    /// As [`crate::Store::clone_pool`]; its permissions do not allow to read it; it is being
    /// written.
    fn clone_pool(&self, name: &str, copy_name: &str) -> Result<(PoolId, bool, u64), StoreError>;
    /// Gives a pool new addresses.
    ///
    /// # Errors
    /// As [`crate::Store::randomize_pool`]; its permissions do not allow to write it; another has a
    /// pool of the store.
    fn randomize_pool(&self, name: &str) -> Result<(), StoreError>;
    /// Checks what can be checked of an import, and changes nothing.
    ///
    /// # Errors
    /// As [`crate::Store::check_import`]; limits of the session.
    fn check_import(&self, manifest: &ImportManifest) -> Result<(), StoreError>;
    /// Begins an import, and gives its number.
    ///
    /// # Errors
    /// As [`crate::Store::begin_import`]; limits of the session.
    fn begin_import(&self, manifest: &ImportManifest) -> Result<u64, StoreError>;
    /// Writes into a puddle of an import: stretches by offset and length, and their bytes one after
    /// the other.
    ///
    /// # Errors
    /// There is no such import, as after the end of the daemon that knew it; a stretch outside the
    /// puddle's body; the disk is full.
    fn fill_import(
        &self,
        import: u64,
        slot: u32,
        pieces: &[(u64, u32)],
        bytes: &[u8],
    ) -> Result<(), StoreError>;
    /// Makes the pools of an import pools of the store: their numbers, whether they moved, and
    /// puddles that are to be rewritten.
    ///
    /// # Errors
    /// As [`crate::relocate::Import::commit`]; there is no such import.
    fn commit_import(
        &self,
        import: u64,
        pools: u32,
    ) -> Result<Vec<(PoolId, bool, u64)>, StoreError>;
    /// Ends an import that comes to nothing.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn abandon_import(&self, import: u64) -> Result<(), StoreError>;
    /// A socket over which the daemon says that the caller's transactions are to stand still.
    /// `patient`: a daemon that has ended is waited for.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn attend(&self, patient: bool) -> Result<OwnedFd, StoreError>;
    /// Has the daemon copy the store. `more` is asked now and then, and may end it.
    ///
    /// # Errors
    /// [`StoreError::Backup`], [`StoreError::NotStill`]: there is no copy.
    fn backup(&self, target: &Path, more: &mut dyn FnMut() -> bool)
    -> Result<BackedUp, StoreError>;
    /// Ends the session.
    ///
    /// # Errors
    /// The daemon cannot be reached; it then takes the end of this process for the goodbye.
    fn goodbye(&self) -> Result<(), StoreError>;
}
