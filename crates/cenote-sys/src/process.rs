//! Identifies processes: numbers, start times, the machine's boot; and random bytes.
//!
//! A process number alone does not name a process for long, because it is used again. Number *and*
//! start time name one process of one boot; with the boot id they name it for ever. Leases and lock
//! files record all three.
//!
//! `/proc` is a hint for messages and for cleaning up. A lock ([`crate::record_lock`]) decides
//! whether a store is in use: it holds across containers with process numbers of their own, and
//! `/proc` does not.
//!
//! # Safety argument
//!
//! No `unsafe` code: reads of `/proc`, and system calls without pointers.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

pub use crate::random::fill_random;

/// This process's number, in its own process namespace.
#[must_use]
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// The effective user that this process acts as.
#[must_use]
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective group that this process acts as.
#[must_use]
pub fn gid() -> u32 {
    // Miri knows users and no groups.
    if cfg!(miri) {
        return 0;
    }
    rustix::process::getegid().as_raw()
}

/// When the process `pid` started, in clock ticks since boot. `None`: there is none, or `/proc`
/// does not show it.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    if pid == self::pid() {
        return own_start_ticks();
    }
    stat(pid).map(|s| s.start_ticks)
}

/// When this process started. It is read once: it never changes, and a forked child, which has
/// another token, reads its own.
fn own_start_ticks() -> Option<u64> {
    static READ_BY: AtomicU64 = AtomicU64::new(0);
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let me = crate::fork_guard::token();
    if READ_BY.load(Ordering::Acquire) == me {
        return Some(TICKS.load(Ordering::Relaxed));
    }
    let ticks = stat(pid())?.start_ticks;
    TICKS.store(ticks, Ordering::Relaxed);
    READ_BY.store(me, Ordering::Release);
    Some(ticks)
}

/// Whether the process `pid` that started at `start_ticks` may still run.
///
/// False is certain within one process namespace: no such process, another one with its number, or
/// a dead one that its parent has not fetched yet. True is also the answer where `/proc` hides a
/// process that exists.
#[must_use]
pub fn is_alive(pid: u32, start_ticks: u64) -> bool {
    match stat(pid) {
        Some(found) => found.start_ticks == start_ticks && !found.is_dead(),
        None => exists(pid),
    }
}

/// Whether the process `pid` holds a lock of an open file description
/// ([`crate::description_lock::Scope::File`]) on a file, by any of its descriptors. A process that
/// has executed another program since holds none, though its number and its start time are the
/// same. `None`: the system does not let this user see.
#[must_use]
pub fn holds_lock(pid: u32, device: u64, inode: u64) -> Option<bool> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    for entry in descriptors.flatten() {
        // One that is closed meanwhile is not there any more.
        let Ok(file) = std::fs::metadata(entry.path()) else { continue };
        if (file.dev(), file.ino()) != (device, inode) {
            continue;
        }
        let number = entry.file_name();
        match std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())) {
            Ok(text)
                if text
                    .lines()
                    .any(|line| line.starts_with("lock:") && line.contains("OFDLCK")) =>
            {
                return Some(true);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(false)
}

/// The name that the program of a process gives itself: at most 15 bytes, which it can choose. For
/// people.
#[must_use]
pub fn program(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// One word that names an *image* of a process, for locks in memory that outlives both. An image
/// ends with its process, or when that calls `exec`: number and start time stay then. The lower 22
/// bits are the process's number. The upper 24 bits mix its start time and the boot's id. The 17
/// bits between, of which bit 31 is not one, mix in `image` as well: what tells images of a process
/// apart.
///
/// Two processes that have one number after another have different names, but for one chance in
/// 2^41. Two images of one process have different names, but for one chance in 2^17.
///
/// # Errors
/// The boot's id cannot be read.
pub fn name_of(pid: u32, start_ticks: u64, image: u64) -> io::Result<u64> {
    Ok(mix(boot_number()?, pid, start_ticks, image))
}

/// The name of this process, as it is until it calls `exec`.
///
/// # Errors
/// The boot's id, or this process's start time, cannot be read.
pub fn own_name() -> io::Result<u64> {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    // A fork has its parent's variables, and another number.
    if known as u32 & PID_BITS == pid() {
        return Ok(known);
    }
    let ticks =
        start_ticks(pid()).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    // The guard's word is random, and one for each image.
    let name = name_of(pid(), ticks, crate::fork_guard::token())?;
    KNOWN.store(name, Ordering::Relaxed);
    Ok(name)
}

/// Whether the process of that name may still run, as this image or another. False is certain
/// within one process namespace, as for [`is_alive`].
#[must_use]
pub fn is_named_alive(name: u64) -> bool {
    if own_name().is_ok_and(|own| own == name) {
        return true;
    }
    let pid = name as u32 & PID_BITS;
    match (stat(pid), boot_number()) {
        (Some(found), Ok(boot)) => {
            process_part(boot, pid, found.start_ticks) == name >> 40 && !found.is_dead()
        }
        (None, Ok(_)) => exists(pid),
        (_, Err(_)) => true,
    }
}

/// Whether that name is of this process before it called `exec`.
#[must_use]
pub fn is_named_earlier(name: u64) -> bool {
    let same = |own: u64| {
        own != name && own >> 40 == name >> 40 && own as u32 & PID_BITS == name as u32 & PID_BITS
    };
    own_name().is_ok_and(same)
}

/// No process has a higher number (`PID_MAX_LIMIT` of the kernel).
const PID_BITS: u32 = (1 << 22) - 1;

fn mix(boot: u64, pid: u32, start_ticks: u64, image: u64) -> u64 {
    let process = process_part(boot, pid, start_ticks);
    let image = scatter(boot ^ start_ticks.rotate_left(17) ^ image.rotate_left(5));
    process << 40
        | (image >> 32 & 0xff) << 32
        | (image >> 40 & 0x1ff) << 22
        | u64::from(pid & PID_BITS)
}

/// 24 bits of a process that all of its images have.
fn process_part(boot: u64, pid: u32, start_ticks: u64) -> u64 {
    scatter(boot ^ start_ticks.rotate_left(17) ^ u64::from(pid)) & 0xff_ffff
}

/// The finishing steps of MurmurHash3: every bit of what goes in changes every bit that comes out.
fn scatter(mut x: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        x = (x ^ x >> 33).wrapping_mul(factor);
    }
    x ^ x >> 33
}

/// The current boot's id, as a number; read once.
fn boot_number() -> io::Result<u64> {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let id = u128::from_le_bytes(boot_id()?);
    Ok(*KNOWN.get_or_init(|| id as u64 ^ (id >> 64) as u64))
}

/// The id of the machine's current boot: 16 random bytes that change whenever the kernel starts.
///
/// # Errors
/// `/proc/sys/kernel/random/boot_id` cannot be read, or does not hold 32 hexadecimal digits.
pub fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    parse_boot_id(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "boot_id does not hold 32 hexadecimal digits")
    })
}

/// 16 random bytes from the kernel, good enough for identifiers and keys.
///
/// # Errors
/// Neither the system call nor `/dev/urandom` works.
pub fn random_bytes16() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let mut digits = 0;
    for c in text.trim().chars().filter(|&c| c != '-') {
        let value = u8::try_from(c.to_digit(16)?).ok()?;
        let byte = bytes.get_mut(digits / 2)?;
        *byte = *byte << 4 | value;
        digits += 1;
    }
    (digits == 32).then_some(bytes)
}

/// The fields of `/proc/<pid>/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    /// Nothing of it runs and its memory is gone. The first thread of a process may be a zombie
    /// while others go on.
    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&bytes))
}

/// The second field, the command in parentheses, may hold blanks and parentheses: what counts
/// follows the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // proc(5) counts from 1: field 3 is the state, 20 the threads, 22 the start time.
    let state = fields.next()?.chars().next()?;
    let threads = fields.nth(16)?.parse().ok()?;
    let start_ticks = fields.nth(1)?.parse().ok()?;
    Some(Stat { state, threads, start_ticks })
}

/// Whether a signal could be sent to `pid`, were it allowed.
fn exists(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_while_it_is_held_and_an_open_file_is_none() {
        use crate::description_lock::{DescriptionLock, Scope};
        use crate::record_lock::RecordLockKind;
        let file = tempfile::NamedTempFile::new().expect("file");
        let found = file.as_file().metadata().expect("metadata");
        let seen = || holds_lock(pid(), found.dev(), found.ino());
        assert_eq!(seen(), Some(false), "it is open");
        let open =
            || Ok(std::fs::OpenOptions::new().read(true).write(true).open(file.path())?.into());
        let lock = DescriptionLock::try_take(Scope::File, RecordLockKind::Exclusive, open)
            .expect("locks work here");
        let lock = lock.expect("free");
        assert_eq!(seen(), Some(true));
        drop(lock);
        assert_eq!(seen(), Some(false));
        assert_eq!(holds_lock(u32::MAX, 0, 0), None);
    }

    #[test]
    fn this_process_is_alive_under_its_own_start_time_only() {
        let ticks = start_ticks(pid()).expect("the test needs /proc");
        assert!(ticks > 0);
        assert!(is_alive(pid(), ticks));
        assert!(!is_alive(pid(), ticks + 1), "a recycled number passed for the process");
    }

    #[test]
    fn a_forked_child_reads_its_own_start_time() {
        let own = start_ticks(pid()).expect("the test needs /proc");
        // A clock tick is 10 ms: the child starts in a later one.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let later = crate::testing::in_child(|| {
            let read = stat(pid()).map(|stat| stat.start_ticks);
            let is_own = start_ticks(pid()) == read && start_ticks(pid()) == read;
            i32::from(is_own && read.is_some_and(|ticks| ticks > own))
        });
        assert_eq!(later, 1, "the child believes that it started when its parent did");
    }

    #[test]
    fn a_name_is_of_one_image_of_one_process_of_one_boot() {
        let (boot, ticks) =
            (boot_number().expect("boot"), start_ticks(pid()).expect("the test needs /proc"));
        let own = own_name().expect("name");
        let image = crate::fork_guard::token();
        assert_eq!((own, own), (mix(boot, pid(), ticks, image), own_name().expect("name again")));
        assert!(own != 0 && own & 1 << 31 == 0 && own as u32 & PID_BITS == pid());
        assert!(is_named_alive(own) && !is_named_earlier(own));
        assert!(
            !is_named_alive(mix(boot, pid(), ticks + 1, image)),
            "another process had the number"
        );
        assert!(
            !is_named_alive(mix(boot ^ 1, pid(), ticks, image)),
            "the machine was started again"
        );
        assert!(!is_named_alive(0) && !is_named_earlier(0));
        // Another image of this process: the process lives, the image does not.
        let other = mix(boot, pid(), ticks, image ^ 1);
        assert!(
            other != own
                && other & 1 << 31 == 0
                && is_named_alive(other)
                && is_named_earlier(other)
        );
        let mut child =
            std::process::Command::new("sleep").arg("100").spawn().expect("start sleep");
        let its = name_of(child.id(), start_ticks(child.id()).expect("start"), 7).expect("name");
        assert!(is_named_alive(its) && !is_named_earlier(its) && its != own);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!is_named_alive(its));
    }

    #[test]
    fn images_of_a_process_have_names_of_their_own() {
        let names: std::collections::BTreeSet<u64> =
            (0..256).map(|image| mix(1, 7, 99, image)).collect();
        assert!(names.len() >= 255, "{}", names.len());
        assert!(
            names.iter().all(|name| name >> 40 == process_part(1, 7, 99) && name & 1 << 31 == 0)
        );
    }

    #[test]
    fn a_dead_child_is_dead_before_and_after_it_is_reaped() {
        let mut child =
            std::process::Command::new("sleep").arg("100").spawn().expect("start sleep");
        let id = child.id();
        let ticks = start_ticks(id).expect("a running child has a start time");
        assert!(is_alive(id, ticks));
        child.kill().expect("kill the child");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_alive(id, ticks) {
            assert!(std::time::Instant::now() < end, "an unreaped dead process counts as alive");
            std::thread::yield_now();
        }
        child.wait().expect("reap the child");
        assert!(!is_alive(id, ticks));
    }

    #[test]
    fn numbers_that_no_process_can_have_are_dead() {
        assert!(!is_alive(u32::MAX, 1));
        assert!(!is_alive(0, 1));
        assert_eq!(start_ticks(u32::MAX), None);
    }

    #[test]
    fn stat_is_read_past_hostile_command_names() {
        let line =
            "7 (a) R 1 (b) Z) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 3 0 987654 1000 2 184";
        assert_eq!(parse_stat(line), Some(Stat { state: 'S', threads: 3, start_ticks: 987_654 }));
        for bad in [
            "",
            "7",
            "7 (a)",
            "7 (a) S 1 2 3",
            "7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 x 0 y",
        ] {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_zombie_leader_with_running_threads_is_not_dead() {
        assert!(Stat { state: 'Z', threads: 1, start_ticks: 1 }.is_dead());
        assert!(!Stat { state: 'Z', threads: 2, start_ticks: 1 }.is_dead());
        assert!(!Stat { state: 'S', threads: 1, start_ticks: 1 }.is_dead());
    }

    #[test]
    fn the_boot_id_is_stable_and_bad_ones_are_refused() {
        assert_eq!(boot_id().expect("boot id"), boot_id().expect("boot id"));
        assert_ne!(boot_id().expect("boot id"), [0; 16]);
        let good = "0123abcd-4567-89ab-cdef-001122334455\n";
        assert_eq!(parse_boot_id(good).map(|b| (b[0], b[1], b[15])), Some((0x01, 0x23, 0x55)));
        for bad in [
            "",
            "0123",
            "0123abcd-4567-89ab-cdef-0011223344556",
            "g123abcd-4567-89ab-cdef-001122334455",
        ] {
            assert_eq!(parse_boot_id(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes16().expect("random"), random_bytes16().expect("random"));
        let mut long = [0; 1000];
        fill_random(&mut long).expect("random");
        assert!(long.iter().any(|&b| b != 0));
        fill_random(&mut []).expect("nothing is easily filled");
    }
}
