//! What a directory lies on, and what that means for durability.
//!
//! `statfs` tells the family. Whether flush and fence alone make a store durable is known for
//! certain only from the kernel accepting a synchronous mapping (`MAP_SYNC`): it is tried on the
//! superblock if there is one, else on a file without a name (`O_TMPFILE`), which vanishes in any
//! case. A medium that is read-only gets no such file.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use cenote_layout::PAGE_SIZE;
use cenote_sys::cpu::{self, FlushInstruction};
use cenote_sys::filesystem::{self, FsKind};
use cenote_sys::memory::{self, Access, Sharing};
use rustix::fs::{Mode, OFlags};

use crate::{Durability, MediumKind, Operation, Persistence};

use super::beneath::open_regular;

/// A file that a store has, and that lies where its puddles lie.
const PROBE_NAME: &str = "superblock";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Detected {
    pub(super) kind: MediumKind,
    pub(super) fs: String,
    pub(super) durability: Durability,
    /// What is executed when `power` is asked for.
    pub(super) power: Persistence,
    pub(super) note: String,
}

/// Examines a directory. `writable`: a nameless file may be created in it.
pub(super) fn detect(
    dir: BorrowedFd<'_>,
    writable: bool,
    force_power: bool,
) -> io::Result<Detected> {
    let fs = filesystem::kind(dir)?;
    let dax = could_be_dax(fs) && accepts_synchronous_mapping(dir, writable);
    Ok(judge(fs, dax, cpu::flush_instruction(), caches_survive_power_loss(), force_power))
}

/// Families that have DAX, and those that are not known here.
fn could_be_dax(fs: FsKind) -> bool {
    matches!(fs, FsKind::Ext | FsKind::Xfs | FsKind::Other(_))
}

/// What follows from the findings.
fn judge(
    fs: FsKind,
    dax: bool,
    flush: FlushInstruction,
    eadr: bool,
    force_power: bool,
) -> Detected {
    let kind = match fs {
        _ if dax => MediumKind::Dax,
        FsKind::Overlay => MediumKind::Overlay,
        fs if fs.is_network() => MediumKind::Network,
        // A server in user space: its failures are like those of a network.
        FsKind::Fuse => MediumKind::Network,
        fs if fs.is_memory() => MediumKind::Tmpfs,
        _ => MediumKind::Ordinary,
    };
    let (mut durability, mut note) = covered(kind, fs, flush, eadr);
    if matches!(fs, FsKind::Btrfs | FsKind::Zfs | FsKind::F2fs) {
        note.push_str(
            ". This file system writes to new places, so space that was taken is not certain to \
             be there: leave some free, because a store into a mapping of a full disk ends the \
             process",
        );
    }
    if force_power && durability == Durability::Process {
        durability = Durability::Power;
        note = format!(
            "treated as persistent memory because the caller forced it: flushes and fences are \
             executed, but what they reach is no safer than this: {note}"
        );
    }
    let power = if eadr && kind == MediumKind::Dax {
        Persistence::fence_only()
    } else {
        Persistence::power()
    };
    Detected { kind, fs: fs.to_string(), durability, power, note }
}

/// What commits on a medium of this kind survive, and why.
fn covered(
    kind: MediumKind,
    fs: FsKind,
    flush: FlushInstruction,
    eadr: bool,
) -> (Durability, String) {
    let can_flush = eadr || flush != FlushInstruction::None;
    match kind {
        MediumKind::Dax if eadr => (
            Durability::Power,
            "persistent memory, mapped directly; the caches survive loss of power (eADR), so a \
             commit is durable after a fence"
                .to_owned(),
        ),
        MediumKind::Dax if can_flush => (
            Durability::Power,
            format!(
                "persistent memory, mapped directly: a commit is durable after {} and a fence",
                flush.name()
            ),
        ),
        MediumKind::Dax => (
            Durability::Process,
            "persistent memory, but no cache flush instruction is known for this processor: \
             commits survive crashes of processes only"
                .to_owned(),
        ),
        MediumKind::Tmpfs => (
            Durability::Process,
            "memory of this machine: commits survive any crash of processes and cost no flush; \
             everything is gone after a reboot"
                .to_owned(),
        ),
        MediumKind::Network => (
            Durability::Process,
            format!(
                "{fs} is a network or user-space file system: commits survive crashes of \
                 processes on this machine as long as the server does; locks may not hold \
                 between machines, so open the store on one at a time"
            ),
        ),
        MediumKind::Overlay => (
            Durability::Process,
            "an overlay, as containers have: commits survive crashes of processes; the files are \
             removed with the container, so put a store that matters on a volume"
                .to_owned(),
        ),
        _ => (
            Durability::Process,
            "files behind the page cache: commits of direct pools survive any crash of processes, \
             not loss of power or a crash of the kernel; objects survive those as of their last \
             psync"
                .to_owned(),
        ),
    }
}

/// Whether the kernel maps a file here such that flush and fence suffice. No, if that cannot be
/// found out.
fn accepts_synchronous_mapping(dir: BorrowedFd<'_>, writable: bool) -> bool {
    let existing = open_regular((dir, PROBE_NAME), Operation::Examine, PROBE_NAME, OFlags::RDONLY)
        .map(|(file, _)| file);
    let file = match existing {
        Ok(file) => file,
        Err(_) if writable => {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => fs::File::from(fd),
                Err(_) => return false,
            }
        }
        Err(_) => return false,
    };
    if !filesystem::is_dax(file.as_fd()).unwrap_or(false) {
        return false;
    }
    let len = PAGE_SIZE as usize;
    let Ok(base) = memory::reserve_anywhere(len, len) else { return false };
    // SAFETY: the page was reserved just now, no other code knows it, and it is never touched.
    let mapped =
        unsafe { memory::map_file(file.as_fd(), base, len, Access::ReadOnly, Sharing::SharedSync) };
    // SAFETY: as above.
    let _ = unsafe { memory::release(base, len) };
    mapped.is_ok()
}

/// Whether every region of persistent memory reports that the processor's caches are flushed when
/// power fails.
pub(super) fn caches_survive_power_loss() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/nd/devices") else { return false };
    let mut domains = devices
        .flatten()
        .filter(|device| device.file_name().to_string_lossy().starts_with("region"))
        .map(|region| fs::read_to_string(region.path().join("persistence_domain")))
        .peekable();
    domains.peek().is_some()
        && domains.all(|domain| domain.is_ok_and(|text| text.trim() == "cpu_cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dax_with_a_flush_claims_power() {
        use FlushInstruction::{Clwb, None};
        let level = |fs, dax, flush, eadr| judge(fs, dax, flush, eadr, false).durability;
        assert_eq!(level(FsKind::Ext, true, Clwb, false), Durability::Power);
        assert_eq!(level(FsKind::Ext, true, None, true), Durability::Power);
        assert_eq!(level(FsKind::Ext, true, None, false), Durability::Process);
        for fs in [
            FsKind::Ext,
            FsKind::Tmpfs,
            FsKind::Overlay,
            FsKind::Nfs,
            FsKind::Fuse,
            FsKind::Other(7),
        ] {
            assert_eq!(level(fs, false, Clwb, true), Durability::Process, "{fs}");
        }
    }

    #[test]
    fn every_kind_is_named_with_a_note_and_forcing_is_admitted() {
        let found = |fs, dax| judge(fs, dax, FlushInstruction::Clwb, false, false);
        for (fs, dax, kind) in [
            (FsKind::Xfs, true, MediumKind::Dax),
            (FsKind::Xfs, false, MediumKind::Ordinary),
            (FsKind::Btrfs, false, MediumKind::Ordinary),
            (FsKind::Tmpfs, false, MediumKind::Tmpfs),
            (FsKind::Ramfs, false, MediumKind::Tmpfs),
            (FsKind::Nfs, false, MediumKind::Network),
            (FsKind::Fuse, false, MediumKind::Network),
            (FsKind::Overlay, false, MediumKind::Overlay),
        ] {
            let detected = found(fs, dax);
            assert_eq!(detected.kind, kind, "{fs}");
            assert!(detected.note.len() > 40, "{fs}");
        }
        assert!(found(FsKind::Btrfs, false).note.contains("leave some free"));
        let forced = judge(FsKind::Tmpfs, false, FlushInstruction::Clwb, false, true);
        assert_eq!((forced.kind, forced.durability), (MediumKind::Tmpfs, Durability::Power));
        assert!(forced.note.contains("forced") && forced.note.contains("gone after a reboot"));
    }

    #[test]
    fn with_caches_in_the_power_fail_domain_power_means_fences_only() {
        let detected = judge(FsKind::Ext, true, FlushInstruction::Clwb, true, false);
        assert_eq!(detected.power, Persistence::fence_only());
        let elsewhere = judge(FsKind::Tmpfs, false, FlushInstruction::Clwb, true, true);
        assert_eq!(elsewhere.power, Persistence::power());
    }
}
