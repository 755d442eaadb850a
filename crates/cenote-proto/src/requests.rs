//! The requests, in one table: the name of each in figures, the part of the daemon that answers it,
//! and the callers that may ask it. The message, its number, the dispatch and the names in metrics
//! come from this table, and so do the requests of fuzzers and hostile clients.
//!
//! Names are for programs that read figures: once one is in a release it stays.

use crate::PoolSpec;
use cenote_layout::catalog::AtRest;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use serde::{Deserialize, Serialize};

/// The part of a daemon that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The session itself, its sockets and files in memory.
    Session,
    /// Looks at the store and the daemon.
    Overview,
    /// Pools: making, opening, removing.
    Pools,
    /// Puddles and logs of a session, and psyncs of pools.
    Puddles,
    /// Persistent memory objects.
    Objects,
    /// Pools that are copied, moved or imported.
    Moves,
    /// The store as a whole.
    Store,
}

/// The callers that may ask a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Each client. Owner, group and mode of a pool or an object that it names decide further, and
    /// so does what the session has been granted.
    Any,
    /// The superuser and the user of the daemon.
    Operator,
}

/// Defines [`Request`] and what follows from its table.
macro_rules! requests {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident
        $({ $( $(#[doc = $of_field:literal])+ $field:ident: $type:ty, )+ })?
        = $name:literal, $topic:ident, $rights:ident;
    )+) => {
        /// What a client asks. The order of variants is part of the protocol: add at the end only.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Request {
            $(
                $(#[doc = $doc])+
                $variant $({ $( $(#[doc = $of_field])+ $field: $type, )+ })?,
            )+
        }

        /// The variants without their fields: its number is the request's kind.
        #[derive(Clone, Copy)]
        enum RequestKind { $($variant,)+ }

        impl Request {
            /// Names of the kinds of requests, by [`Request::kind`].
            pub const KINDS: [&str; [$($name),+].len()] = [$($name),+];

            /// Which kind it is: its place in the protocol.
            #[must_use]
            pub const fn kind(&self) -> usize {
                match self {
                    $(Self::$variant $({ $($field: _),+ })? => RequestKind::$variant as usize,)+
                }
            }

            /// What its kind is called in figures and messages.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant $({ $($field: _),+ })? => $name,)+
                }
            }

            /// Which part of the daemon answers it.
            #[must_use]
            pub const fn topic(&self) -> Topic {
                match self {
                    $(Self::$variant $({ $($field: _),+ })? => Topic::$topic,)+
                }
            }

            /// The callers that may ask it.
            #[must_use]
            pub const fn rights(&self) -> Rights {
                match self {
                    $(Self::$variant $({ $($field: _),+ })? => Rights::$rights,)+
                }
            }
        }
    };
}

requests! {
    /// The first message: a new session, or one that this process had with an earlier daemon.
    Hello {
        /// The session to go on with.
        resume: Option<Uuid>,
    } = "hello", Session, Any;
    /// Nothing: the paper's no-op.
    Ping = "ping", Overview, Any;
    /// What the daemon is doing.
    Stat = "stat", Overview, Any;
    /// Pools by number, those after `after`.
    Pools {
        /// The last one of the page before.
        after: Option<PoolId>,
    } = "pools", Overview, Any;
    /// Creates a pool. Asked again with the same token, because the answer was lost, it gives the
    /// pool that was made.
    CreatePool {
        /// Its name.
        name: String,
        /// How.
        spec: PoolSpec,
        /// A number of the client's choice, another one for each pool that it creates.
        token: Uuid,
    } = "create_pool", Pools, Any;
    /// Removes a pool.
    RemovePool {
        /// Its name.
        name: String,
    } = "remove_pool", Pools, Any;
    /// Grants a pool; its puddles are asked for afterwards.
    OpenPool {
        /// Its name.
        name: String,
        /// Whether for writing.
        writable: bool,
    } = "open_pool", Pools, Any;
    /// Puddles of a granted pool in index order, with their descriptors: `GetExistPuddle`.
    Puddles {
        /// The pool.
        pool: PoolId,
        /// The first one of the page.
        first: u32,
    } = "puddles", Puddles, Any;
    /// One more puddle for a pool: `GetNewPuddle`. Asked again, because the answer was lost, it
    /// gives the same.
    TakePuddle {
        /// The pool.
        pool: PoolId,
        /// Its number in the pool: the next one.
        index: u32,
        /// Its bytes.
        size: u64,
        /// Whether it is for metadata of the pool's heap, and not for blocks.
        metadata: bool,
    } = "take_puddle", Puddles, Any;
    /// The session's log space: `RegLogSpace`.
    LogSpace = "log_space", Puddles, Any;
    /// A puddle for a log.
    LogPuddle {
        /// Its bytes.
        size: u64,
    } = "log_puddle", Puddles, Any;
    /// Types by id, those after `after`.
    Types {
        /// The last one of the page before.
        after: Option<TypeId>,
    } = "types", Overview, Any;
    /// Registers types.
    RegisterTypes {
        /// Their records.
        records: Vec<TypeRecord>,
    } = "register_types", Store, Any;
    /// A pool has been traced.
    TraceDone {
        /// Which.
        pool: PoolId,
    } = "trace_done", Pools, Any;
    /// Takes space for a part of a puddle.
    EnsureSpace {
        /// The pool.
        pool: PoolId,
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
    } = "ensure_space", Puddles, Any;
    /// Changes a pool's owner, group or mode.
    SetPermissions {
        /// Its name.
        name: String,
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
        /// The new permission bits.
        permissions: Option<u32>,
    } = "set_permissions", Pools, Any;
    /// The session ends: its mappings are not touched any more.
    Goodbye = "goodbye", Session, Any;
    /// Grants a pool for writing, beside others that share it.
    SharePool {
        /// Its name.
        name: String,
    } = "share_pool", Pools, Any;
    /// The processes that share a pool.
    Members {
        /// The pool.
        pool: PoolId,
    } = "members", Pools, Any;
    /// Clients whose logs are set aside.
    UndecidedLogs = "undecided_logs", Overview, Any;
    /// Decides about the logs of one.
    DecideLogs {
        /// Which client.
        client: Uuid,
        /// Whether they are applied, if they pass their checks; else they are discarded.
        apply: bool,
    } = "decide_logs", Store, Any;
    /// Sessions by identity, those after `after`.
    Clients {
        /// The last one of the page before.
        after: Option<Uuid>,
    } = "clients", Overview, Any;
    /// What the daemon counts, in Prometheus' text format.
    Metrics = "metrics", Overview, Any;
    /// The primaries of a granted pool in shadowed mode, with descriptors for reading.
    Primaries {
        /// The pool.
        pool: PoolId,
        /// The first one of the page.
        first: u32,
    } = "primaries", Puddles, Any;
    /// Psyncs puddles of pools in shadowed mode.
    PsyncPools {
        /// The transfer, which has a list of lines, and their contents. It is used up.
        transfer: u64,
        /// The puddles, by which the list counts.
        puddles: Vec<Uuid>,
        /// Entries that the list has room for.
        runs: u32,
    } = "psync_pools", Puddles, Any;
    /// Objects by name, those after `after`.
    Objects {
        /// The last one of the page before.
        after: Option<String>,
    } = "objects", Objects, Any;
    /// One object.
    Object {
        /// Its name.
        name: String,
    } = "object", Objects, Any;
    /// Creates an object.
    CreateObject {
        /// Its identity, chosen by the caller.
        id: Uuid,
        /// Its name.
        name: String,
        /// Its bytes.
        data_len: u64,
        /// Permission bits.
        permissions: u32,
        /// What protects it at rest.
        at_rest: AtRest,
        /// The header of that, with the wrapped key.
        header: Vec<u8>,
    } = "create_object", Objects, Any;
    /// Removes an object.
    DestroyObject {
        /// Its name.
        name: String,
    } = "destroy_object", Objects, Any;
    /// Attaches an object.
    AttachObject {
        /// Its name.
        name: String,
        /// Whether for writing.
        writable: bool,
    } = "attach_object", Objects, Any;
    /// Gives an object back.
    DetachObject {
        /// Which.
        object: Uuid,
    } = "detach_object", Objects, Any;
    /// Psyncs objects that are attached for writing; as [`Request::PsyncPools`].
    PsyncObjects {
        /// The transfer.
        transfer: u64,
        /// The objects, by which the list counts.
        objects: Vec<Uuid>,
        /// Entries that the list has room for.
        runs: u32,
        /// Whether the answer waits until their files hold it.
        settled: bool,
    } = "psync_objects", Objects, Any;
    /// Changes an object's owner, group or mode.
    SetObjectOwner {
        /// Its name.
        name: String,
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
        /// The new permission bits.
        permissions: Option<u32>,
    } = "set_object_owner", Objects, Any;
    /// A file in memory for the next psync, of the daemon's making: no descriptor of a client's
    /// ever reaches the daemon.
    Transfer = "transfer", Session, Any;
    /// Where the puddles of all pools lie, those behind `after` by pool and number: for telling to
    /// which pool a pointer leads.
    Places {
        /// The last one of the page before.
        after: Option<(PoolId, u32)>,
    } = "places", Moves, Any;
    /// Copies a pool. Asked again with the same token, because the answer was lost, it says what
    /// the copy is.
    ClonePool {
        /// The pool.
        name: String,
        /// What the copy is to be called.
        copy: String,
        /// As in [`Request::CreatePool`].
        token: Uuid,
    } = "clone_pool", Moves, Any;
    /// Gives a pool addresses that are chosen afresh.
    RandomizePool {
        /// Its name.
        name: String,
    } = "randomize_pool", Moves, Any;
    /// Begins an import: what it is to be is an [`ImportSpec`](crate::ImportSpec) in a transfer,
    /// which is used up.
    BeginImport {
        /// The transfer.
        transfer: u64,
        /// Bytes of it.
        len: u32,
        /// It is only checked, and nothing is begun.
        check_only: bool,
    } = "begin_import", Moves, Any;
    /// Writes stretches of one puddle of an import, whose bytes are one after the other in a
    /// transfer, which is used up.
    FillImport {
        /// The import.
        import: u64,
        /// Which of its puddles, by place in the spec.
        slot: u32,
        /// The transfer.
        transfer: u64,
        /// Offset in the puddle, and bytes, of each stretch.
        pieces: Vec<(u64, u32)>,
    } = "fill_import", Moves, Any;
    /// Makes the pools of an import pools of the store. Asked again with the same token, because
    /// the answer was lost, it says what they are.
    CommitImport {
        /// The import.
        import: u64,
        /// As in [`Request::CreatePool`].
        token: Uuid,
        /// How many pools it has.
        pools: u32,
    } = "commit_import", Moves, Any;
    /// Ends an import that comes to nothing.
    AbandonImport {
        /// The import.
        import: u64,
    } = "abandon_import", Moves, Any;
    /// The client's ear ([`Call`](crate::Call)): the other end of a socket that the daemon keeps.
    Attend = "attend", Session, Any;
    /// Copies the store, for the daemon's user or the superuser. Not asked again if the answer is
    /// lost.
    Backup {
        /// The directory that is to be the copy, from the root.
        target: String,
        /// How long clients may take to stand still, in milliseconds; 0: as the daemon has it.
        within_ms: u32,
    } = "backup", Store, Operator;
    /// Says that a pool that may be torn is whole.
    DeclareWhole {
        /// Its name.
        name: String,
    } = "declare_whole", Pools, Any;
}
