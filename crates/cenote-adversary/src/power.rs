//! Loss of power on a file system of this harness's own: ext4 in a file, mounted through a loop
//! device.
//!
//! A child psyncs pools in shadowed mode, protected or not, or objects, and says each psync that
//! has returned. Meanwhile and afterwards random pages of random files are written back, as a
//! kernel may at any time (a direct read makes it write those pages first). The child is killed,
//! and the file behind the loop device, which has what reached the device and nothing else, is
//! copied. The copy is mounted in its place, and the superblock gets another boot's id: that is a
//! machine that lost power. What must hold then:
//!
//! * every psync that was said is there, or a later one; whole, and the same one in all pools or
//!   objects that were psynced together;
//! * nothing is damaged, and no block leaks; the next child goes on.

use crate::child::{self, Child};
use crate::kill;
use crate::round::{Outcome, Round, Trouble, found, require};
use crate::sample;
use crate::table::TableModel;
use cenote::{AtRest, HeapKind, OpenOptions, PoolMode};
use cenote_fuzz::Random;
use cenote_layout::header::{read, seal};
use cenote_layout::superblock::{COPY_SIZE, Superblock};
use cenote_object::{Permission, psync_all};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes as _;

/// Losses of one round.
const LOSSES: u64 = 3;
/// Bytes of the file system.
const DISK_LEN: u64 = 96 << 20;
/// Bytes of an object.
const OBJECT_LEN: u64 = 256 << 10;
const OBJECTS: [&str; 2] = ["x", "y"];
/// Pools are psynced after each so many steps ([`kill::child`]).
const PSYNC_EVERY: u64 = 5;

/// A file system in a file, mounted.
struct Disk {
    file: PathBuf,
    at: PathBuf,
}

fn run(program: &str, args: &[&dyn AsRef<OsStr>]) -> Result<String, String> {
    let mut command = Command::new(program);
    args.iter().for_each(|arg| _ = command.arg(arg));
    match command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output() {
        Err(error) => Err(format!("{program}: {error}")),
        Ok(done) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Ok(done) => Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

impl Disk {
    /// Makes one. `Skipped` where that is not allowed.
    fn make(dir: &Path) -> Outcome<Self> {
        let disk = Self { file: dir.join("disk"), at: dir.join("mounted") };
        File::create(&disk.file)?.set_len(DISK_LEN)?;
        std::fs::create_dir(&disk.at)?;
        run("mkfs.ext4", &[&"-q", &"-F", &disk.file]).map_err(Trouble::Skipped)?;
        disk.mount().map_err(Trouble::Skipped)?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        // Its journal is written when a program asks for a sync, and hardly ever by itself.
        run("mount", &[&"-o", &"loop,commit=300", &self.file, &self.at]).map(drop)
    }

    /// Writes of the loop device so far, and those that it has not answered yet.
    fn writes(&self) -> Outcome<(String, bool)> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let at = self.at.display().to_string();
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at.as_str()));
        let Some(device) = line.and_then(|line| line.split(' ').next()) else {
            return found("not mounted");
        };
        let name = device.rsplit('/').next().unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let field = |at| stat.split_whitespace().nth(at).unwrap_or_default().to_owned();
        Ok((field(4), field(8) == "0"))
    }

    /// The power fails: only what has reached the device stays.
    fn lose_power(&self) -> Outcome {
        let copy = self.file.with_extension("copy");
        // A copy during which something reached the device would be of no moment.
        for attempt in 0.. {
            let before = self.writes()?;
            run("cp", &[&"--sparse=always", &self.file, &copy]).map_err(Trouble::Found)?;
            if before.1 && self.writes()? == before {
                break;
            }
            require(attempt < 200, || "the device is never idle".into())?;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        run("umount", &[&self.at]).map_err(Trouble::Found)?;
        std::fs::rename(&copy, &self.file)?;
        self.mount().map_err(Trouble::Found)?;
        another_boot(&self.store())
    }

    fn store(&self) -> PathBuf {
        self.at.join("store")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &[&"-l", &self.at]);
    }
}

/// Makes it so that the store was last open under another boot of the machine.
fn another_boot(store: &Path) -> Outcome {
    change_superblock(store, |block| block.boot_id.0[3] ^= 0x55)
}

/// Makes a copy of a store that was left open pass for the store itself: its superblock names no
/// place.
pub(crate) fn no_place(store: &Path) -> Outcome {
    change_superblock(store, |block| {
        (block.device, block.directory_inode, block.superblock_inode) = (0, 0, 0);
    })
}

fn change_superblock(store: &Path, change: impl Fn(&mut Superblock)) -> Outcome {
    let path = store.join("superblock");
    let mut bytes = std::fs::read(&path)?;
    for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
        let Ok(mut block) = read::<Superblock>(copy, true) else { continue };
        change(&mut block);
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    Ok(std::fs::write(&path, bytes)?)
}

/// Makes the kernel write random pages of random files, and now and then all that it knows of one.
/// Errors are of files that go away.
fn write_back(store: &Path, random: &mut Random) {
    let mut files = Vec::new();
    for dir in ["", "puddles", "primary"] {
        let Ok(entries) = std::fs::read_dir(store.join(dir)) else { continue };
        files.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()));
    }
    if files.is_empty() {
        return;
    }
    files.sort();
    let file = &files[random.next_word() as usize % files.len()];
    if random.next_word().is_multiple_of(8) {
        if let Ok(file) = File::open(file) {
            let _ = file.sync_data();
        }
        return;
    }
    let Ok(fd) = rustix::fs::open(file, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()) else {
        return;
    };
    let pages = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size as u64 / 4096).max(1);
    let mut buffer = vec![0u8; 2 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    for _ in 0..1 + random.next_word() % 8 {
        let at = random.next_word() % pages * 4096;
        let _ = rustix::io::pread(&fd, &mut buffer[start..start + 4096], at);
    }
}

/// A child: `STORE SEED`. Psyncs two objects.
pub(crate) fn psyncs(args: &[String]) -> Outcome {
    let seed = child::number(args, 1)?;
    let objects = sample::open_objects(Path::new(&args[0]), OpenOptions::default())?;
    let mut attached = Vec::new();
    for name in OBJECTS {
        attached.push(objects.attach(name, Permission::ReadWrite, None)?);
    }
    let first =
        attached[0].as_slice()[..8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    for step in first + 1.. {
        for (object, at, value) in stores(seed, step) {
            attached[object].as_mut_slice()?[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let mut all: Vec<_> = attached.iter_mut().collect();
        if step.is_multiple_of(3) {
            all[0].psync()?;
        } else {
            psync_all(&mut all)?;
        }
        child::say(step)?;
    }
    Ok(())
}

/// What a step stores: object, offset, value. Each third changes one object only.
fn stores(seed: u64, step: u64) -> Vec<(usize, usize, u64)> {
    let mut random = Random(seed ^ step.rotate_left(20));
    let mut out = Vec::new();
    for object in 0..if step.is_multiple_of(3) { 1 } else { 2 } {
        out.push((object, 0, step));
        for _ in 0..1 + random.next_word() % 60 {
            let word = 1 + random.next_word() % (OBJECT_LEN / 8 - 1);
            out.push((object, word as usize * 8, random.next_word()));
        }
    }
    out
}

/// What a round is about, and its model.
pub(crate) enum Subject {
    Pools(TableModel),
    Objects { step: u64, contents: [Vec<u8>; 2] },
}

impl Subject {
    fn prepare(store: &Path, round: &mut Round<'_>) -> Outcome<Self> {
        let kinds =
            [AtRest::None, AtRest::Authenticated, AtRest::Encryption, AtRest::EncryptionIntegrity];
        match round.below(2) {
            0 => {
                let at_rest = kinds[round.below(kinds.len() as u64) as usize];
                let heap = [HeapKind::Traced, HeapKind::WEAR][round.below(2) as usize];
                kill::prepare(store, (PoolMode::Shadowed, at_rest, heap))?;
                Ok(Self::Pools(TableModel::default()))
            }
            _ => Self::objects(store),
        }
    }

    /// A store with two objects.
    pub(crate) fn objects(store: &Path) -> Outcome<Self> {
        child::format(store)?;
        let objects = sample::open_objects(store, OpenOptions::default())?;
        for name in OBJECTS {
            objects.pcreate(name, OBJECT_LEN, None, 0o600)?;
        }
        let store = objects.store();
        drop(objects);
        store.close()?;
        let contents = core::array::from_fn(|_| vec![0; OBJECT_LEN as usize]);
        Ok(Self::Objects { step: 0, contents })
    }

    pub(crate) fn role(&self) -> &'static str {
        if matches!(self, Self::Pools(_)) { "kill" } else { "psyncs" }
    }

    /// What a child said, as the last psync that must be there; and how many it was.
    pub(crate) fn acknowledged(&self, said: &[u64]) -> (u64, u64) {
        match self {
            Self::Pools(model) => {
                let psyncs: Vec<u64> = said
                    .iter()
                    .filter(|word| **word & kill::PSYNCED != 0)
                    .map(|word| word & !kill::PSYNCED)
                    .collect();
                (psyncs.last().copied().unwrap_or(model.step), psyncs.len() as u64)
            }
            Self::Objects { step, .. } => {
                (said.last().copied().unwrap_or(*step), said.len() as u64)
            }
        }
    }

    /// Compares what is there after the loss; the step of a psync that must be there.
    pub(crate) fn judge(&mut self, store: &Path, seed: u64, psynced: u64) -> Outcome {
        match self {
            Self::Pools(model) => {
                kill::judge(store, seed, model, psynced..=psynced + PSYNC_EVERY, true)?;
                require(model.step.is_multiple_of(PSYNC_EVERY), || {
                    format!("step {}, where no psync was", model.step)
                })
            }
            Self::Objects { step, contents } => {
                let objects = sample::open_objects(store, OpenOptions::default())?;
                let mut attached = Vec::new();
                for name in OBJECTS {
                    attached.push(objects.attach(name, Permission::Read, None)?);
                }
                let bytes = &attached[0].as_slice()[..8];
                let there = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                require((psynced..=psynced + 1).contains(&there), || {
                    format!("step {there} is there, and psync {psynced} was acknowledged")
                })?;
                while *step < there {
                    *step += 1;
                    for (object, at, value) in stores(seed, *step) {
                        contents[object][at..at + 8].copy_from_slice(&value.to_le_bytes());
                    }
                }
                for (object, must) in attached.iter().zip(contents) {
                    let differs =
                        object.as_slice().iter().zip(must.iter()).position(|(is, must)| is != must);
                    require(differs.is_none(), || {
                        format!(
                            "{} is not as step {there} left it: byte {differs:?}",
                            object.name()
                        )
                    })?;
                }
                drop(attached);
                let store = objects.store();
                drop(objects);
                Ok(store.close()?)
            }
        }
    }
}

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    let disk = Disk::make(round.dir)?;
    let store = disk.store();
    let mut subject = Subject::prepare(&store, round)?;
    for loss in 0..LOSSES {
        let mut child =
            Child::start(round.dir, subject.role(), &[&store, &round.seed.to_string()])?;
        child.hear()?;
        let stop = AtomicBool::new(false);
        let mut random = Random(round.random.next_word());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    write_back(&store, &mut random);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            std::thread::sleep(round.moment(60_000));
            stop.store(true, Ordering::Relaxed);
        });
        let said = child.kill()?;
        (0..round.below(12)).for_each(|_| write_back(&store, &mut random));
        let (psynced, count) = subject.acknowledged(&said);
        disk.lose_power()?;
        round.counts.add("losses of power", 1);
        round.counts.add("psyncs acknowledged", count);
        let judged = subject.judge(&store, round.seed, psynced);
        judged.map_err(|trouble| trouble.at(format_args!("{}, loss {loss}", subject.role())))?;
    }
    Ok(())
}
