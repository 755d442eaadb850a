//! The paper's Figures 7 and 10: FileBench's personalities with objects in the place of files, each
//! update made durable.
//!
//! The rows, each a cycle of operations, with the share of writes and the length of a file:
//!
//! * `fs` (file server): write a whole file, append 16 KiB, read a whole file; writes 67 %; file
//!   128 KiB.
//! * `vm` (mail server): append 16 KiB, read, append, read; writes 50 %; file 32 KiB.
//! * `wp` (web proxy): append 16 KiB, five times read; writes 17 %; file 32 KiB.
//! * `ws` (web server): ten times read, append 16 KiB to a log; writes 9 %; file 32 KiB.
//! * `fs_attach` ... `ws_attach`: the same, where each operation attaches its object and detaches
//!   it.
//!
//! The mixes are those of the personalities as they were published, without what has no meaning for
//! objects (open, close, stat); an append goes on at the file's beginning when it comes to its end.
//! A thread has files of its own. Unit: nanoseconds an operation, all threads together.
//!
//! Systems: `cenote`, and in the rows with attach `integrity`, `encryption`, `both`,
//! `authenticated`: objects with that protection. `mmap, msync`: no crash consistency.
//! `write, fsync`: a file that is written as a whole from memory. `peers` has `lmdb`:
//! a value for each file, put and committed.
//!
//! As in the paper the rows are by threads; `--quick` has those with attach for one.
//!
//! Files are made once for all runs, and each mode of protection has its own.
//!
//! More rows say what an attach takes: `attach`, of an object of 4 GiB (64 MiB on tmpfs, where its
//! pages would take memory), and `first_access`: the first load from a page of one, pages being
//! chosen at random. `first_access_p50` and `first_access_p99` are, of 1,000 such loads, what the
//! half takes at most, and 99 of 100.

use crate::case::{Case, Failure, Length, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::figures::pmo_kernels::{Ground, Mapped, Memory, REFERENCE};
use crate::place::Settings;
use cenote_object::{Attached, Keyring, MasterKey, Mode, ObjectOptions, Objects, Permission};
use std::collections::BTreeSet;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "pmo-files",
    title: "Persistent memory objects, Figures 7 and 10: FileBench's personalities",
    body: Body::Cases(cases),
};

const APPEND: usize = 16 << 10;

/// Files of one thread.
pub trait Files {
    /// Writes into a file, and makes it durable.
    ///
    /// # Errors
    /// The system's.
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure>;

    /// Reads all of a file, and gives the sum of some of its bytes.
    ///
    /// # Errors
    /// The system's.
    fn read(&mut self, file: usize) -> Result<u64, Failure>;
}

/// What reading a file is: it is copied.
pub fn taken(bytes: &[u8], buffer: &mut Vec<u8>) -> u64 {
    buffer.clear();
    buffer.extend_from_slice(bytes);
    buffer.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

/// Makes so many files of so many bytes for a thread of a number.
pub type Make = Arc<dyn Fn(u32, usize, usize) -> Result<Box<dyn Files>, Failure> + Send + Sync>;

#[derive(Clone, Copy)]
enum Operation {
    Whole,
    Append,
    Read,
}

use Operation::{Append, Read, Whole};

/// A personality: its rows, its cycle, the size of its files.
type Personality = ([&'static str; 2], &'static [Operation], usize);

const PERSONALITIES: [Personality; 4] = [
    (["fs", "fs_attach"], &[Whole, Append, Read], 128 << 10),
    (["vm", "vm_attach"], &[Append, Read, Append, Read], 32 << 10),
    (["wp", "wp_attach"], &[Append, Read, Read, Read, Read, Read], 32 << 10),
    (
        ["ws", "ws_attach"],
        &[Read, Read, Read, Read, Read, Read, Read, Read, Read, Read, Append],
        32 << 10,
    ),
];

fn cycle(
    files: &mut dyn Files,
    count: usize,
    len: usize,
    cycle: &[Operation],
    operations: u64,
    state: &mut u64,
) -> Result<(), Failure> {
    let data = vec![*state as u8; len.max(APPEND)];
    for operation in cycle.iter().cycle().take(operations as usize) {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (file, place) =
            ((*state >> 33) as usize % count, (*state >> 50) as usize * APPEND % len);
        match operation {
            Whole => files.update(file, 0, &data[..len])?,
            Append => files.update(file, place, &data[..APPEND])?,
            Read => drop(black_box(files.read(file)?)),
        }
    }
    Ok(())
}

fn run(
    make: &Make,
    (count, len): (usize, usize),
    operations: &[Operation],
    threads: u32,
    wanted: u64,
) -> Result<Sample, Failure> {
    let share = wanted.div_ceil(u64::from(threads));
    let barrier = std::sync::Barrier::new(threads as usize);
    let one = |thread: u32| -> Result<Sample, String> {
        let prepared = make(thread, count, len).map_err(|error| error.to_string());
        barrier.wait();
        let mut files = prepared?;
        let mut state = wanted.wrapping_mul(31).wrapping_add(u64::from(thread)) | 1;
        let mut watch = Stopwatch::new();
        watch
            .time(share, || cycle(&mut *files, count, len, operations, share, &mut state))
            .map_err(|error| error.to_string())?;
        Ok(watch.sample())
    };
    let samples: Vec<Result<Sample, String>> = std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut all = Sample::default();
    for sample in samples {
        let sample = sample?;
        all.operations += sample.operations;
        all.elapsed = all.elapsed.max(sample.elapsed);
    }
    Ok(all)
}

/// The cases of one system; `attach`: of the rows where each operation attaches.
pub fn cases_of(
    settings: &Settings,
    system: &'static str,
    level: &'static str,
    attach: bool,
    make: &Make,
) -> Vec<Case> {
    let count = if settings.quick { 4 } else { 64 };
    let mut cases = Vec::new();
    // Attaching is the same with any number of threads, and takes its time with protection.
    let threads = if attach && settings.quick { vec![1] } else { settings.threads() };
    for threads in threads {
        for (rows, operations, len) in PERSONALITIES {
            let make = Arc::clone(make);
            let work = move |wanted| run(&make, (count, len), operations, threads, wanted);
            let case = Case::new(rows[usize::from(attach)], system, level, work).uncounted();
            let length = if settings.quick { Length::Operations(12) } else { case.length };
            cases.push(Case { threads, length, ..case });
        }
    }
    cases
}

fn key() -> Result<Keyring, Failure> {
    let mut bytes: [u8; 32] = core::array::from_fn(|i| i as u8 * 7);
    Ok(Keyring::new(MasterKey::from_bytes(&mut bytes)?))
}

/// Objects, kept attached, or attached for each operation.
struct Pmo {
    objects: Objects,
    names: Vec<String>,
    kept: Vec<Option<Attached>>,
    key: Option<Keyring>,
    keep: bool,
    buffer: Vec<u8>,
}

impl Pmo {
    fn make(
        objects: &Objects,
        known: &Mutex<BTreeSet<String>>,
        (mode, keep): (Mode, bool),
        thread: u32,
        (count, len): (usize, usize),
    ) -> Result<Self, Failure> {
        let key = if mode.has_key() { Some(key()?) } else { None };
        let mut made = Self {
            objects: objects.clone(),
            names: Vec::new(),
            kept: Vec::new(),
            key,
            keep,
            buffer: Vec::new(),
        };
        for number in 0..count {
            // Only the thread itself has its files attached.
            let name = format!("file-{mode:?}-{len}-{thread}-{number}");
            let is_new = known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
            made.names.push(name);
            made.kept.push(None);
            if is_new {
                let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
                objects.pcreate_with(
                    &made.names[number],
                    len as u64,
                    made.key.as_ref(),
                    &options,
                )?;
            } else if !keep {
                continue;
            }
            // Those that are kept attached are warm in each run before it is timed, as a mapping
            // is.
            let attached = made.attached(number, Permission::ReadWrite)?;
            attached.as_mut_slice()?.fill(1);
            attached.psync()?;
            made.release(number)?;
        }
        objects.checkpoint()?;
        Ok(made)
    }

    fn attached(&mut self, file: usize, permission: Permission) -> Result<&mut Attached, Failure> {
        if self.kept[file].is_none() {
            let attached = self.objects.attach(&self.names[file], permission, self.key.as_ref())?;
            self.kept[file] = Some(attached);
        }
        self.kept[file].as_mut().ok_or_else(|| "attached just now".into())
    }

    fn release(&mut self, file: usize) -> Result<(), Failure> {
        match self.kept[file].take_if(|_| !self.keep) {
            Some(attached) => Ok(attached.detach()?),
            None => Ok(()),
        }
    }
}

impl Files for Pmo {
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let attached = self.attached(file, Permission::ReadWrite)?;
        attached.as_mut_slice()?[at..at + bytes.len()].copy_from_slice(bytes);
        attached.psync()?;
        self.release(file)
    }

    fn read(&mut self, file: usize) -> Result<u64, Failure> {
        let mut buffer = core::mem::take(&mut self.buffer);
        // Kept for both.
        let permission = if self.keep { Permission::ReadWrite } else { Permission::Read };
        let attached = self.attached(file, permission)?;
        attached.load(0, attached.len())?;
        let sum = taken(attached.as_slice(), &mut buffer);
        self.buffer = buffer;
        self.release(file)?;
        Ok(sum)
    }
}

struct MappedFiles(Vec<Mapped>, Vec<u8>);

impl Files for MappedFiles {
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.0[file].bytes()?[at..at + bytes.len()].copy_from_slice(bytes);
        self.0[file].sync()
    }

    fn read(&mut self, file: usize) -> Result<u64, Failure> {
        Ok(taken(self.0[file].bytes()?, &mut self.1))
    }
}

struct WrittenFiles(Vec<(File, Vec<u8>)>, Vec<u8>);

impl Files for WrittenFiles {
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let (file, memory) = &mut self.0[file];
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        file.write_all_at(memory, 0)?;
        Ok(file.sync_all()?)
    }

    fn read(&mut self, file: usize) -> Result<u64, Failure> {
        Ok(taken(&self.0[file].1, &mut self.1))
    }
}

/// Attach, and the first access to a page, of a large object.
fn attach_cases(settings: &Settings, ground: &Rc<Ground>) -> Result<Vec<Case>, Failure> {
    let len: u64 = match (settings.quick, ground.level) {
        (true, _) => 4 << 20,
        (false, crate::case::PROCESS) => 64 << 20,
        (false, _) => 4 << 30,
    };
    let mut cases = Vec::new();
    for (system, mode) in [
        ("cenote", Mode::None),
        ("encryption", Mode::Encryption),
        ("both", Mode::EncryptionIntegrity),
        ("authenticated", Mode::Authenticated),
    ] {
        let key = if mode.has_key() { Some(Rc::new(key()?)) } else { None };
        let name = format!("large-{system}");
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        ground.objects.pcreate_with(&name, len, key.as_deref(), &options)?;
        for (row, access, part) in [
            ("attach", false, None),
            ("first_access", true, None),
            ("first_access_p50", true, Some(50)),
            ("first_access_p99", true, Some(99)),
        ] {
            let (ground, key, name) = (Rc::clone(ground), key.clone(), name.clone());
            let level = ground.level;
            let work = move |count: u64| {
                let mut watch = Stopwatch::new();
                let attach = || ground.objects.attach(&name, Permission::Read, key.as_deref());
                if !access {
                    for _ in 0..count {
                        let attached = watch.time(1, attach)?;
                        attached.detach()?;
                    }
                    return Ok(watch.sample());
                }
                let attached = attach()?;
                let pages = len / 4096;
                let mut state = count | 1;
                let count = count.min(pages / 32).max(1);
                let mut each = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let at = ((state >> 20) % pages * 4096) as usize;
                    let begun = Instant::now();
                    watch.time(1, || black_box(attached.as_slice()[at]));
                    each.push(begun.elapsed());
                }
                let Some(percent) = part else { return Ok(watch.sample()) };
                each.sort_unstable();
                let at = (each.len() * percent / 100).min(each.len() - 1);
                Ok(Sample { operations: 1, elapsed: each[at], ..Sample::default() })
            };
            let case = Case::new(row, system, level, work).uncounted();
            let length = Length::Operations(if settings.quick { 8 } else { 1000 });
            cases.push(Case { length, ..case });
        }
    }
    Ok(cases)
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let half_len = if settings.quick { 1 << 20 } else { 16 << 20 };
    let ground = Rc::new(Ground::new(settings, half_len)?);
    let level = ground.level;
    let directory = Arc::clone(&ground.directory);
    let known = Arc::new(Mutex::new(BTreeSet::new()));
    let pmo = |mode: Mode, keep: bool| -> Make {
        // The directory is removed with the last case that needs it, whichever rows were asked for.
        let (objects, known, kept) =
            (ground.objects.clone(), Arc::clone(&known), Arc::clone(&ground.directory));
        Arc::new(move |thread, count, len| {
            let _in = kept.path();
            Ok(Box::new(Pmo::make(&objects, &known, (mode, keep), thread, (count, len))?))
        })
    };
    let at = Arc::clone(&directory);
    let mapped: Make = Arc::new(move |_, count, len| {
        let files = (0..count).map(|_| Mapped::new(at.path(), len)).collect::<Result<_, _>>()?;
        Ok(Box::new(MappedFiles(files, Vec::new())))
    });
    let written: Make = Arc::new(move |_, count, len| {
        let file = |_| -> Result<_, Failure> {
            let file = tempfile::tempfile_in(directory.path())?;
            file.write_all_at(&vec![1; len], 0)?;
            file.sync_all()?;
            Ok((file, vec![1; len]))
        };
        Ok(Box::new(WrittenFiles((0..count).map(file).collect::<Result<_, _>>()?, Vec::new())))
    });
    let mut cases = cases_of(settings, "cenote", level, false, &pmo(Mode::None, true));
    cases.extend(cases_of(settings, REFERENCE, level, false, &mapped));
    cases.extend(cases_of(settings, "write, fsync", level, false, &written));
    for (system, mode) in [
        ("cenote", Mode::None),
        ("integrity", Mode::Integrity),
        ("encryption", Mode::Encryption),
        ("both", Mode::EncryptionIntegrity),
        ("authenticated", Mode::Authenticated),
    ] {
        cases.extend(cases_of(settings, system, level, true, &pmo(mode, false)));
    }
    cases.extend(attach_cases(settings, &ground)?);
    Ok(cases)
}
