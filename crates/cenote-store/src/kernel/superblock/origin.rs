//! Compares the place of a store with the place where its last writer opened it.
//!
//! The superblock of a store that is *open* says where: device and inode of the directory, inode of
//! the file `superblock`, and the opener's process, start time and boot. A store that was closed
//! may be copied and moved at will, and is not compared. One that is open is compared so:
//!
//! | | same boot | another boot |
//! | --- | --- | --- |
//! | inode of `superblock` | yes | yes |
//! | inode of the directory | yes | yes |
//! | device | yes, in the same mounting | no: devices are numbered anew |
//!
//! # Whether the page cache was lost
//!
//! A session that did not end well left in the page cache what it had not synced. States:
//!
//! | boot | mounting of the file system | |
//! | --- | --- | --- |
//! | the same | the same, or one of both not known | a crash of processes: the files hold all |
//! | the same | another | as a loss of power: a disk was pulled, or unmounted |
//! | another | any | a loss of power |
//!
//! A file system that was unmounted well after a process had died lost nothing, as one that a
//! machine unmounted before it went down: neither shows, so both count as a loss of power. That
//! costs what was not psynced of shadowed pools, and refuses direct pools below level `power` until
//! the caller takes them; it loses nothing that was psynced. No container and no bind mount looks
//! like another mounting ([`cenote_sys::mounting`]), and while a process has the store open it
//! stays mounted.
//!
//! On a file system of another machine, of a user's program, or an overlay, inodes and devices may
//! be numbered anew at any mounting. There a difference counts only while the recorded opener
//! lives, since a file that is open keeps its number. Media without identities, and superblocks
//! that name no place, are never compared.
//!
//! A store that differs is a copy of an open store, or was put back from one: its files are of
//! different moments. While the opener lives, under the same boot, and holds the lock of that
//! superblock, the copy is refused; otherwise the caller's [`CopyPolicy`](crate::CopyPolicy)
//! decides. A process that closed the store, or executed another program, holds no lock.
//!
//! A store that lies where it was opened is not asked for its opener: its locks are free, so no
//! process has it.

use cenote_layout::id::Uuid;
use cenote_layout::superblock::{ORIGIN_COPY, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileId, Medium, MediumKind};
use cenote_sys::process;

/// Where a store lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StorePlace {
    /// Its directory.
    pub(crate) directory: FileId,
    /// Its file `superblock`.
    pub(crate) superblock: FileId,
}

/// What the comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The store is its sessions' own.
    Own,
    /// It is a copy, and the process that has the original open lives.
    OfLiving(u32),
    /// It is a copy of an open store.
    Copy,
}

impl StorePlace {
    /// Says it in a superblock that is written next.
    pub(crate) fn record(self, block: &mut Superblock) {
        block.device = self.directory.device;
        block.directory_inode = self.directory.inode;
        block.superblock_inode = self.superblock.inode;
    }

    /// Compares it with what a superblock says.
    pub(crate) fn compare(
        self,
        block: &Superblock,
        clean: bool,
        (boot, mounting): (Uuid, u64),
        kind: MediumKind,
    ) -> Origin {
        let same_boot = block.boot_id == boot;
        let unknown = block.superblock_inode == 0 || self.superblock == FileId::UNKNOWN;
        if !clean && !unknown && !planted(Bug::CopyNotRecognised) {
            let inodes = (block.directory_inode, block.superblock_inode);
            let other = inodes != (self.directory.inode, self.superblock.inode);
            let other_device = same_boot && block.device != self.directory.device;
            let moved = other || (other_device && !is_mounted_anew(block, mounting));
            let opener = same_boot.then(|| opener_at_work(block)).flatten();
            let keeps_numbers = !matches!(kind, MediumKind::Network | MediumKind::Overlay);
            match (moved, opener) {
                (_, Some(pid)) if moved || other_device => return Origin::OfLiving(pid),
                (true, None) if keeps_numbers => return Origin::Copy,
                _ => {}
            }
        }
        if block.origin == ORIGIN_COPY { Origin::Copy } else { Origin::Own }
    }
}

/// Whether what the last session left in the page cache is there still.
pub(crate) fn keeps_cache(block: &Superblock, medium: &dyn Medium) -> bool {
    block.boot_id == medium.boot_id() && !is_mounted_anew(block, medium.mounting())
}

/// Whether its file system was mounted anew since the last writer opened the store, within a boot.
fn is_mounted_anew(block: &Superblock, mounting: u64) -> bool {
    let known = block.mounting != 0 && mounting != 0;
    known && block.mounting != mounting && !planted(Bug::InstanceIgnored)
}

/// The process that a superblock names as its opener, if it lives.
pub(crate) fn living_opener(block: &Superblock) -> Option<u32> {
    let pid = u32::try_from(block.opener_pid).ok().filter(|pid| *pid != 0)?;
    process::is_alive(pid, block.opener_start_ticks).then_some(pid)
}

/// The same, if that process holds the lock of the superblock that is named here. Where the system
/// does not show that, the process counts.
fn opener_at_work(block: &Superblock) -> Option<u32> {
    let at_work =
        |pid: &u32| process::holds_lock(*pid, block.device, block.superblock_inode) != Some(false);
    living_opener(block).filter(at_work)
}
