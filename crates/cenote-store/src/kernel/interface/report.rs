//! Reports of an open store, for people and for programs: what the open found, and what the store
//! is.

use cenote_layout::id::{PoolId, Uuid};
use cenote_log::{CrashKind, Outcome};
use cenote_medium::{Durability, MediumInfo};
use core::fmt;
use std::time::Duration;

/// What a piece of damage costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageEffect {
    /// Nothing: the other copy has it, and the next writable open puts this one right.
    ReadFromOther,
    /// What stood there is lost.
    Lost,
}

impl fmt::Display for DamageEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadFromOther => "read from the other copy",
            Self::Lost => "lost",
        })
    }
}

/// One thing that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// One copy of the superblock.
    Superblock {
        /// Which: 0 or 1.
        copy: u8,
        /// What is wrong.
        detail: String,
    },
    /// Part of a catalog file.
    Catalog {
        /// Which file.
        file: &'static str,
        /// Where in it, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What is wrong.
        detail: String,
        /// What it costs.
        effect: DamageEffect,
    },
    /// A puddle: missing, truncated, resized, or with a header that is not its own.
    Puddle {
        /// Which.
        uuid: Uuid,
        /// Its pool; 0 for logs.
        pool: PoolId,
        /// Its number in the pool.
        index: u32,
        /// What is wrong.
        detail: String,
    },
    /// The directory of a client's logs: its transactions cannot be undone.
    LogSpace {
        /// The client.
        client: Uuid,
        /// The puddle.
        puddle: Uuid,
        /// What is wrong.
        detail: String,
        /// The pools that the client could write.
        pools: Vec<PoolId>,
    },
    /// A log that failed its checks, was not applied, and is kept.
    Log {
        /// The client that wrote it.
        client: Uuid,
        /// Which of its logs.
        log_id: u64,
        /// Its head puddle.
        puddle: Uuid,
        /// What is wrong.
        detail: String,
        /// The pools that the client could write.
        pools: Vec<PoolId>,
    },
    /// The journal of psyncs of pools: pools that power failed under cannot be brought to their
    /// last psync.
    Journal {
        /// What is wrong.
        detail: String,
        /// Those pools.
        pools: Vec<PoolId>,
    },
    /// An object: its file is missing, truncated, resized, or another one's, or its records do not
    /// fit together.
    Object {
        /// Its name.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// A file of control data that no open for writing takes: it has several names.
    Control {
        /// The file.
        name: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// A file among the puddles or primaries that no record names, kept because records were lost,
    /// or because it may be another store's.
    Orphan {
        /// The file.
        name: String,
        /// What it says it is.
        detail: String,
    },
}

impl Damage {
    /// Whether something is lost, in contrast to damage that a second copy makes good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Superblock { .. } => false,
            Self::Catalog { effect, .. } => *effect == DamageEffect::Lost,
            _ => true,
        }
    }

    /// Pools that are touched by it.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolId> {
        match self {
            Self::Puddle { pool, .. } => vec![*pool],
            Self::LogSpace { pools, .. }
            | Self::Log { pools, .. }
            | Self::Journal { pools, .. } => pools.clone(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { copy, detail } => write!(f, "superblock, copy {copy}: {detail}"),
            Self::Catalog { file, offset, len, detail, effect } if *len > 0 => {
                write!(f, "{file}, {len} bytes at {offset}: {detail}: {effect}")
            }
            Self::Catalog { file, detail, effect, .. } => write!(f, "{file}: {detail}: {effect}"),
            Self::Puddle { uuid, pool, index, detail } if pool.0 != 0 => {
                write!(f, "puddle {index} of pool {pool} ({uuid}): {detail}")
            }
            Self::Puddle { uuid, detail, .. } => write!(f, "puddle {uuid}: {detail}"),
            Self::LogSpace { client, puddle, detail, pools } => {
                write!(f, "log space {puddle} of client {client}: {detail}; {}", Pools(pools))
            }
            Self::Log { client, log_id, puddle, detail, pools } => {
                write!(
                    f,
                    "log {log_id:016x} of client {client} (puddle {puddle}): {detail}; {}",
                    Pools(pools)
                )
            }
            Self::Journal { detail, pools } => {
                write!(f, "journal of psyncs: {detail}; {}", Pools(pools))
            }
            Self::Control { detail, .. } => f.write_str(detail),
            Self::Object { name, detail } => write!(f, "object \"{name}\": {detail}"),
            Self::Orphan { name, detail } => {
                write!(f, "{name}: no record names this file, it is kept: {detail}")
            }
        }
    }
}

struct Pools<'a>(&'a [PoolId]);

impl fmt::Display for Pools<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no pool is affected");
        }
        f.write_str("concerns pools")?;
        for pool in self.0 {
            write!(f, " {pool}")?;
        }
        Ok(())
    }
}

/// How a session found a pool (RAL-6): what its heap has to do before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolStart {
    /// No session has opened it for writing since it was created.
    Fresh,
    /// Its last writer let go of it properly: everything is as it was left.
    Clean,
    /// It was in use when its last writer ended without closing the store. After a crash of
    /// processes its transactions were finished or undone; after a loss of power its heap is
    /// traced as well.
    Dirty(CrashKind),
}

impl fmt::Display for PoolStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fresh => "fresh",
            Self::Clean => "clean",
            Self::Dirty(CrashKind::Process) => "dirty (process)",
            Self::Dirty(CrashKind::Power) => "dirty (power)",
        })
    }
}

/// What happened to one log at open.
#[derive(Clone, Debug)]
pub struct LogReport {
    /// The client that wrote it.
    pub client: Uuid,
    /// Which of its logs.
    pub log_id: u64,
    /// Its head puddle.
    pub puddle: Uuid,
    /// What replay did.
    pub outcome: Outcome,
    /// The pools that the client could write.
    pub pools: Vec<PoolId>,
}

/// A pool in shadowed mode that went back to its last psync, because power failed while it was
/// written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredPool {
    /// Its number.
    pub pool: PoolId,
    /// Its name.
    pub name: String,
    /// Pages that were not as that psync had left them.
    pub pages: u64,
}

/// What an open found and did.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// Whether the last writer closed the store.
    pub clean: bool,
    /// The store is a copy of an open store, and not all of its pools have been found whole since.
    pub copied: bool,
    /// What ended the last writer, if it did not.
    pub crash: Option<CrashKind>,
    /// The store was opened read-only although it was to be written: by policy, because of damage.
    pub demoted: bool,
    /// The logs that were looked at.
    pub logs: Vec<LogReport>,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// Pools, with their names, that a loss of power may have torn.
    pub not_covered: Vec<(PoolId, String)>,
    /// Pools in shadowed mode that are as their last psync left them, because power failed while
    /// they were written.
    pub restored: Vec<RestoredPool>,
    /// Puddle files without a record that were removed: creations or removals that were
    /// interrupted.
    pub orphans_removed: u64,
    /// Catalog files that were written anew: torn or damaged.
    pub catalog_files_repaired: u32,
    /// Where the store's window was, if it was taken in this process and the store opened in
    /// another one. Its puddles are rewritten when they are first touched.
    pub window_moved_from: Option<u64>,
    /// Time that recovery took.
    pub recovery: Duration,
}

/// What a store is: everything that `cenote info` prints.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Its identity.
    pub uuid: Uuid,
    /// Where it lies and what that gives.
    pub medium: MediumInfo,
    /// Format version on media.
    pub format_version: u32,
    /// First address of the window.
    pub window_base: u64,
    /// Bytes of the window.
    pub window_len: u64,
    /// Bytes of the window that no puddle takes.
    pub window_free: u64,
    /// Durability level of this session.
    pub durability: Durability,
    /// Whether this session may write.
    pub writable: bool,
    /// When it was formatted, in seconds since 1970.
    pub formatted_at_s: u64,
    /// Generation of the superblock.
    pub generation: u64,
    /// Number of the catalog's last batch.
    pub catalog_batch: u64,
    /// Bytes of one catalog file.
    pub catalog_bytes: u64,
    /// Number of pools.
    pub pools: u64,
    /// Number of puddles, those of logs included.
    pub puddles: u64,
    /// Bytes of all puddles.
    pub puddle_bytes: u64,
    /// Number of registered types.
    pub types: u64,
    /// Number of clients with a log space: this session, and those whose logs are set aside.
    pub clients: u64,
    /// Number of log puddles, used and spare.
    pub log_puddles: u64,
    /// Number of puddles that wait for a pool that wants one.
    pub spare_puddles: u64,
    /// Bytes of those.
    pub spare_bytes: u64,
    /// Why no further commit is acknowledged, if so.
    pub poisoned: Option<String>,
}

/// A pool that damage concerns.
pub(crate) fn concerns(damage: &[Damage], pool: PoolId) -> Vec<Damage> {
    damage.iter().filter(|d| d.pools().contains(&pool)).cloned().collect()
}
