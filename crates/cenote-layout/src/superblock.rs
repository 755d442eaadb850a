//! The superblock: what a store is, in two checksummed copies.
//!
//! ```text
//! file "superblock"      0 ................ 4095   copy 0: even generations
//!                     4096 ................ 8191   copy 1: odd generations
//! ```
//!
//! A change writes the copy that is *not* the newest, with the next generation, and syncs: the old
//! copy stays whole until the new one is. The newest copy whose checksum fits is the truth about
//! what never changes (UUID, window). About *state* it is believed only if the other copy is whole
//! too and exactly one generation older: otherwise the newest may be the lost one, and the store
//! counts as open, which costs a recovery and loses nothing.

use crate::catalog::HeapKind;
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use crate::puddle::{UNCLOSED_MAX, is_named_era};
use crate::{PAGE_SIZE, SLOT_SIZE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one copy.
pub const COPY_SIZE: u64 = 4096;

/// No process has the store open for writing, and everything that was written is on the medium.
pub const STATE_CLEAN: u32 = 1;
/// A writer has opened the store, under `boot_id`, and has not closed it.
pub const STATE_OPEN: u32 = 2;

/// Incompatible feature: the catalog may have records about clients of a daemon
/// ([`crate::catalog::Record::is_hosted`]), from here on.
pub const INCOMPAT_HOSTED: u64 = 1 << 0;
/// Incompatible feature: the catalog may have records of pools that are protected at rest
/// ([`crate::catalog::Record::PoolAtRest`]).
pub const INCOMPAT_POOLS_AT_REST: u64 = 1 << 1;
/// Incompatible feature: the catalog may have records of puddles that are sealed under another's
/// identity ([`crate::catalog::Record::SealedAs`]).
pub const INCOMPAT_SEALED_AS: u64 = 1 << 2;
/// Incompatible feature: the catalog may say another window than the superblock
/// ([`crate::catalog::Record::Window`]).
pub const INCOMPAT_WINDOW_MOVED: u64 = 1 << 6;
/// In every superblock: batches of the catalog name records of the journals
/// ([`crate::catalog::RecordHeader::journals`]).
pub const INCOMPAT_CATALOG_TIED: u64 = 1 << 8;
/// Incompatible feature: the catalog may have records of pools that may be torn
/// ([`crate::catalog::Record::PoolTorn`]).
pub const INCOMPAT_TORN: u64 = 1 << 9;
/// Incompatible feature: there may be files of kept psyncs ([`crate::kept`]), and records of them
/// ([`crate::catalog::Record::Kept`]). (Bit 7: earlier builds had no records of them.)
pub const INCOMPAT_KEPT: u64 = 1 << 10;
/// Incompatible feature: the superblock may say which mounting of its file system the last writer
/// had ([`Superblock::mounting`]).
pub const INCOMPAT_MOUNTING: u64 = 1 << 11;
/// In every superblock: puddles have stamps ([`crate::puddle`]), and the catalog may name seals
/// ([`crate::catalog::Record::Sealed`]).
pub const INCOMPAT_STAMPS: u64 = 1 << 12;
/// In every superblock: each close of an era has a seal of its own ([`crate::puddle::seal_of`]).
pub const INCOMPAT_SEALS_APART: u64 = 1 << 13;
/// Incompatible feature: something may wait at addresses of before the window moved: logs that are
/// pending ([`crate::catalog::PendingRewriteRecord`]), protected puddles whose generation is not
/// known, and kept psyncs of puddles that are pending.
pub const INCOMPAT_WAITING_MOVED: u64 = 1 << 16;
/// A pool has a logged heap.
pub const INCOMPAT_LOGGED_HEAPS: u64 = 1 << 17;
/// `incompat` bit of a store in which a logged heap took a puddle for metadata: the catalog may
/// have puddles of [`crate::puddle::Role::Metadata`].
pub const INCOMPAT_METADATA_PUDDLES: u64 = 1 << 18;
/// A pool has a wear heap ([`crate::wear`]), or has had one.
pub const INCOMPAT_WEAR_HEAPS: u64 = 1 << 19;
/// Incompatible feature: the catalog may have records of pools whose data are write-protected
/// ([`crate::catalog::Record::PoolProtected`]).
pub const INCOMPAT_PROTECTED_DATA: u64 = 1 << 20;
/// A type of the store owns blocks ([`crate::pointer::PointerKind::OWNED`]): its pools may have
/// blocks that wait to be freed.
pub const INCOMPAT_OWNED: u64 = 1 << 21;
/// The `incompat` bit of a store that has a pool with such a heap; 0: none is needed.
#[must_use]
pub const fn heap_feature(heap: HeapKind) -> u64 {
    match heap {
        HeapKind::Traced => 0,
        HeapKind::Logged => INCOMPAT_LOGGED_HEAPS,
        HeapKind::Wear { .. } => INCOMPAT_WEAR_HEAPS,
    }
}

/// The bits that every superblock has. Stores of earlier builds lack them, and are refused.
pub const INCOMPAT_ALWAYS: u64 = INCOMPAT_CATALOG_TIED | INCOMPAT_STAMPS | INCOMPAT_SEALS_APART;

/// No writer has opened the store yet.
pub const DURABILITY_UNSAID: u32 = 0;
/// The session survived crashes of processes only.
pub const DURABILITY_PROCESS: u32 = 1;
/// The session survived loss of power.
pub const DURABILITY_POWER: u32 = 2;

/// The store's files are those that its sessions wrote.
pub const ORIGIN_OWN: u64 = 0;
/// The store's files were copied while a session had it open, and its pools have not been checked
/// since.
pub const ORIGIN_COPY: u64 = 1;

/// The journal has nothing behind the header that the superblock names: the last session that
/// opened it closed the store.
pub const JOURNAL_SETTLED: u64 = 1 << 0;
/// The superblock was put back beside a later journal, which stays refused.
pub const JOURNAL_REFUSED: u64 = 1 << 1;
/// Bits of one journal.
pub const JOURNAL_BITS: u32 = 2;

/// One copy of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// Magic `CENOTESB`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The store's identity.
    pub store: Uuid,
    /// First address of the window that the store was formatted with: where its puddles lie in
    /// every process, unless the catalog says another window. A multiple of [`SLOT_SIZE`].
    pub window_base: u64,
    /// Bytes of the window, a multiple of [`SLOT_SIZE`].
    pub window_len: u64,
    /// One higher with every change; its lowest bit says which copy this is.
    pub generation: u64,
    /// [`STATE_CLEAN`] or [`STATE_OPEN`].
    pub state: u32,
    /// Durability level of the last writer's session: [`DURABILITY_UNSAID`],
    /// [`DURABILITY_PROCESS`] or [`DURABILITY_POWER`]. After a loss of power it says whether
    /// what that session acknowledged was covered.
    pub durability: u32,
    /// The boot under which the store was last opened for writing; tells a crash of processes from
    /// a loss of power.
    pub boot_id: Uuid,
    /// Process id of the last writer.
    pub opener_pid: u64,
    /// When that process started, in clock ticks since boot: pids come again, this pair does not.
    pub opener_start_ticks: u64,
    /// When the store was formatted, in seconds since 1970.
    pub formatted_at_s: u64,
    /// The session of the last writer, random: which log space is its. While that writer has the
    /// store open it looks before every control write whether this is still its own.
    pub client: Uuid,
    /// The catalog had this batch, durably, when this copy was written. Catalog files that both
    /// end earlier were rolled back.
    pub catalog_batch: u64,
    /// The headers of the files `journal` and `journal.pools`, as a session that opened them, or
    /// closed the store, left them: an older file was put back.
    pub journals: [JournalMark; 2],
    /// Where the last writer opened the store: the device of its directory. 0 with both others: no
    /// writer has said.
    pub device: u64,
    /// Inode of its directory.
    pub directory_inode: u64,
    /// Inode of the file `superblock`. A copy of the store has another one.
    pub superblock_inode: u64,
    /// [`ORIGIN_OWN`] or [`ORIGIN_COPY`].
    pub origin: u64,
    /// Of journals of sessions that earlier copies name it does not count what they name of each
    /// other: the caller has accepted files of different moments since.
    pub tied_from: u64,
    /// What is known of each journal: [`JOURNAL_SETTLED`] and [`JOURNAL_REFUSED`], those of the
    /// second one [`JOURNAL_BITS`] higher.
    pub journal_states: u64,
    /// Of batches of the catalog up to this one it does not count what they name of the journals:
    /// the caller has accepted files of different moments since.
    pub tied_batch: u64,
    /// Which mounting of its file system the last writer opened the store in, as the kernel
    /// numbers them until the next boot; 0: not known. Another one means that what was not
    /// synced may be lost, as another boot does. Only with [`INCOMPAT_MOUNTING`].
    pub mounting: u64,
    /// The era of stamps ([`crate::puddle`]): files that say it, or one of its seals, may have been
    /// written since the last close that sealed all of them. 0: there are none.
    pub era: u64,
    /// Sessions of that era before this one, none of which closed the store.
    pub unclosed: u64,
    /// Zero.
    pub reserved1: [u8; 3792],
}

/// What the superblock says about a journal. All zero: nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalMark {
    /// [`crate::object::JournalHeader::epoch`].
    pub epoch: u64,
    /// [`crate::object::JournalHeader::generation`].
    pub generation: u64,
    /// [`crate::object::JournalHeader::trimmed`].
    pub trimmed: u64,
    /// [`crate::object::JournalHeader::chain`].
    pub chain: u64,
}

impl JournalMark {
    /// Of a journal that no session has opened.
    pub const NONE: Self = Self { epoch: 0, generation: 0, trimmed: 0, chain: 0 };
}

const _: () = assert!(size_of::<JournalMark>() == 32);

const _: () = assert!(size_of::<Superblock>() as u64 == COPY_SIZE);
const _: () = assert!(core::mem::offset_of!(Superblock, window_base) == 64);
const _: () = assert!(core::mem::offset_of!(Superblock, boot_id) == 96);
const _: () = assert!(core::mem::offset_of!(Superblock, client) == 136);
const _: () = assert!(core::mem::offset_of!(Superblock, catalog_batch) == 152);
const _: () = assert!(core::mem::offset_of!(Superblock, journals) == 160);
const _: () = assert!(core::mem::offset_of!(Superblock, device) == 224);
const _: () = assert!(core::mem::offset_of!(Superblock, directory_inode) == 232);
const _: () = assert!(core::mem::offset_of!(Superblock, superblock_inode) == 240);
const _: () = assert!(core::mem::offset_of!(Superblock, origin) == 248);
// All that is not zero lies in one sector: no loss of power tears a copy that is being written.
const _: () = assert!(core::mem::offset_of!(Superblock, tied_from) == 256);
const _: () = assert!(core::mem::offset_of!(Superblock, journal_states) == 264);
const _: () = assert!(core::mem::offset_of!(Superblock, tied_batch) == 272);
const _: () = assert!(core::mem::offset_of!(Superblock, mounting) == 280);
const _: () = assert!(core::mem::offset_of!(Superblock, era) == 288);
const _: () = assert!(core::mem::offset_of!(Superblock, unclosed) == 296);
const _: () = assert!(core::mem::offset_of!(Superblock, reserved1) == 304);
const _: () = assert!(core::mem::offset_of!(Superblock, reserved1) <= 512);

impl Header for Superblock {
    const NAME: &'static str = "superblock";
    const MAGIC: [u8; 8] = *b"CENOTESB";
    const SEED: u64 = crate::checksum::seed::SUPERBLOCK;
    const KNOWN_INCOMPAT: u64 = INCOMPAT_HOSTED
        | INCOMPAT_POOLS_AT_REST
        | INCOMPAT_SEALED_AS
        | INCOMPAT_WINDOW_MOVED
        | INCOMPAT_KEPT
        | INCOMPAT_CATALOG_TIED
        | INCOMPAT_TORN
        | INCOMPAT_MOUNTING
        | INCOMPAT_WAITING_MOVED
        | INCOMPAT_LOGGED_HEAPS
        | INCOMPAT_METADATA_PUDDLES
        | INCOMPAT_WEAR_HEAPS
        | INCOMPAT_PROTECTED_DATA
        | INCOMPAT_OWNED
        | INCOMPAT_STAMPS
        | INCOMPAT_SEALS_APART;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.prefix.incompat & INCOMPAT_ALWAYS != INCOMPAT_ALWAYS {
            // Its catalog and its puddles would be taken for damaged.
            return bad("set of features, of an earlier build", self.prefix.incompat);
        }
        if self.window_base == 0 || !self.window_base.is_multiple_of(SLOT_SIZE) {
            return bad("window_base", self.window_base);
        }
        if self.window_len == 0 || !self.window_len.is_multiple_of(SLOT_SIZE) {
            return bad("window_len", self.window_len);
        }
        if self.window_base.checked_add(self.window_len).is_none_or(|end| end > 1 << 47) {
            return bad("window end", self.window_base.wrapping_add(self.window_len));
        }
        if self.state != STATE_CLEAN && self.state != STATE_OPEN {
            return bad("state", u64::from(self.state));
        }
        if self.store.is_nil() {
            return bad("store uuid", 0);
        }
        if self.durability > DURABILITY_POWER {
            return bad("durability", u64::from(self.durability));
        }
        if self.tied_from > self.generation {
            return bad("tied_from", self.tied_from);
        }
        if self.tied_batch > crate::catalog::BATCH_NUMBER_MAX {
            return bad("tied_batch", self.tied_batch);
        }
        if self.mounting != 0 && self.prefix.incompat & INCOMPAT_MOUNTING == 0 {
            return bad("mounting", self.mounting);
        }
        if self.origin > ORIGIN_COPY {
            return bad("origin", self.origin);
        }
        if self.journal_states >> (2 * JOURNAL_BITS) != 0 {
            return bad("journal_states", self.journal_states);
        }
        if !is_named_era(self.era) {
            return bad("era", self.era);
        }
        if self.unclosed > UNCLOSED_MAX || self.era == 0 && self.unclosed != 0 {
            return bad("number of sessions that did not close it", self.unclosed);
        }
        if self.reserved1.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        for mark in &self.journals {
            if mark.epoch == 0 && *mark != JournalMark::NONE {
                return bad("journal without an epoch", mark.generation);
            }
        }
        Ok(())
    }
}

const _: () = assert!(COPY_SIZE == PAGE_SIZE);
