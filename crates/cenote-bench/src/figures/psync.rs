//! What a psync costs: of k scattered pages of a large object, against writing as many pages to a
//! file that has its space, and one `fdatasync`, which is the least that durability costs there.
//!
//! An object of 1 GiB (`--quick`: 16 MiB, and no row of 4096 pages), attached anew for each run.
//! Unit: nanoseconds an operation; storing into the pages is not part of it.
//!
//! The rows, each with its operation:
//!
//! * `psync_1` ... `psync_4096`: a psync after k pages, spread over the object, were stored into.
//! * `sustained_256`: a psync of 256 pages, one after the other, the journal being trimmed
//!   meanwhile.
//! * `psync_1_read`: the same of one page after every page of the object was read, so that all page
//!   tables are there.
//! * `scan_page`: a psync of an object of which every page was read and none stored into, divided
//!   by its pages.
//!
//! What is psynced has to reach the object's own file some time, at the device's speed for
//! scattered pages, and a thread sees to that after the psync. The other rows are about a program
//! that does not psync all the time: it is done between two operations, outside the timed parts.
//! `sustained_256` is about one that does nothing else, beside which that thread works.
//!
//! Systems: `cenote` (the mechanism that is chosen here; the pages are stored into as a whole),
//! `cenote (one line)` (8 bytes of each page), `cenote (private-copy)` and `cenote (mprotect)`
//! (those mechanisms), `write, fdatasync` (k pages, one after the other, of a file).
//!
//! On `/dev/shm`, the default, nothing can be synced, and the level is `process`; `--dir` on a
//! disk's file system gives `power`.

use crate::case::{Case, Failure, Length, POWER, PROCESS, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::place::{Settings, medium};
use cenote::{Durability, FormatOptions, OpenOptions};
use cenote_medium::MediumKind;
use cenote_object::{Attached, Mechanism, Objects, ObjectsOptions, Permission};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "psync",
    title: "Persistent memory objects: psync of scattered pages",
    body: Body::Cases(cases),
};

/// Rows and the pages that an operation stores into.
pub const ROWS: [(&str, u64); 4] =
    [("psync_1", 1), ("psync_16", 16), ("psync_256", 256), ("psync_4096", 4096)];

const PAGE: usize = 4096;
/// Bytes of each half of the journal.
const HALF_LEN: u64 = 64 << 20;
/// Operations of a run of the largest psyncs: some 17 MiB each.
const LARGE_RUN: u64 = 4;

/// What else a run of psyncs does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preparation {
    None,
    /// Reads all pages first.
    Read,
    /// Never waits for the journal to be trimmed outside the timed parts.
    Sustained,
}

/// A store with one object.
struct Ground {
    objects: Objects,
    len: u64,
    level: &'static str,
    file: File,
    _directory: tempfile::TempDir,
}

impl Ground {
    fn new(settings: &Settings) -> Result<Self, Failure> {
        let directory = settings.temporary()?;
        let medium = medium(directory.path(), Durability::Process)?;
        let level = match medium.describe().kind {
            MediumKind::Tmpfs => PROCESS,
            _ => POWER,
        };
        cenote_store::format(medium.clone(), &FormatOptions::default())?;
        let (store, _) = cenote_object::Store::open(medium, OpenOptions::default())?;
        // As large as the largest psync needs, from the beginning.
        let options = ObjectsOptions { half_len: HALF_LEN, ..ObjectsOptions::default() };
        let objects = Objects::open(&store, &options)?;
        let len = if settings.quick { 16 << 20 } else { 1 << 30 };
        objects.pcreate("bench", len, None, 0o600)?;
        // Blocks that were written once: the first write of a block changes the file system's own
        // data too.
        let mut object = objects.attach("bench", Permission::ReadWrite, None)?;
        let step = 32 << 20;
        for at in (0..len as usize).step_by(step) {
            object.as_mut_slice()?[at..(at + step).min(len as usize)].fill(1);
            object.psync()?;
        }
        drop(object);
        objects.checkpoint()?;
        let file = tempfile::tempfile_in(directory.path())?;
        let zeros = vec![0; PAGE * 4096];
        file.write_all_at(&zeros, 0)?;
        file.sync_all()?;
        Ok(Self { objects, len, level, file, _directory: directory })
    }

    fn pages(&self) -> u64 {
        self.len / PAGE as u64
    }

    fn attach(&self, mechanism: Option<Mechanism>) -> Result<Attached, Failure> {
        Ok(self.objects.attach_with("bench", Permission::ReadWrite, None, mechanism)?)
    }

    /// Reads a word of every page.
    fn read_all(object: &Attached) {
        let sum =
            object.as_slice().iter().step_by(PAGE).fold(0u64, |sum, byte| sum + u64::from(*byte));
        black_box(sum);
    }

    /// Psyncs of `pages` pages each, of which `line` says whether one line or all of it is stored
    /// into.
    fn psyncs(
        &self,
        count: u64,
        mechanism: Option<Mechanism>,
        pages: u64,
        line: bool,
        preparation: Preparation,
    ) -> Result<Sample, Failure> {
        let mut object = self.attach(mechanism)?;
        self.objects.checkpoint()?;
        if preparation == Preparation::Read {
            Self::read_all(&object);
            object.psync()?;
        }
        let all = self.pages();
        let mut watch = Stopwatch::new();
        let mut random = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for round in 0..count {
            // A stride that is prime to the number of pages, which is a power of two: no page comes
            // twice.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (first, stride) = (random >> 20, (random >> 40) | 1);
            let data = object.as_mut_slice()?;
            for i in 0..pages {
                let at = (first.wrapping_add(i.wrapping_mul(stride)) % all) as usize * PAGE;
                let value = round.wrapping_add(random >> 50) as u8;
                if line {
                    data[at + 64..at + 72].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                } else {
                    data[at..at + PAGE]
                        .iter_mut()
                        .for_each(|byte| *byte = byte.wrapping_add(value | 1));
                }
            }
            watch.time(1, || object.psync())?;
            if preparation != Preparation::Sustained {
                self.objects.checkpoint()?;
            }
        }
        Ok(watch.sample())
    }

    fn scans(&self, count: u64, mechanism: Option<Mechanism>) -> Result<Sample, Failure> {
        let mut object = self.attach(mechanism)?;
        Self::read_all(&object);
        object.psync()?;
        let rounds = count.div_ceil(self.pages());
        let mut watch = Stopwatch::new();
        watch.time(rounds * self.pages(), || {
            (0..rounds).try_for_each(|_| object.psync().map(drop))
        })?;
        Ok(watch.sample())
    }

    fn writes(&self, count: u64, pages: u64) -> Result<Sample, Failure> {
        let mut data = vec![0u8; pages as usize * PAGE];
        let mut watch = Stopwatch::new();
        for round in 0..count {
            data.fill(round as u8);
            watch.time(1, || {
                self.file.write_all_at(&data, 0).and_then(|()| self.file.sync_data())
            })?;
        }
        Ok(watch.sample())
    }
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let ground = Rc::new(Ground::new(settings)?);
    let mut systems: Vec<(&'static str, Option<Mechanism>, bool)> =
        vec![("cenote", None, false), ("cenote (one line)", None, true)];
    for (name, mechanism) in [
        ("cenote (private-copy)", Mechanism::PrivateCopy),
        ("cenote (mprotect)", Mechanism::Mprotect),
    ] {
        if ground.attach(Some(mechanism)).is_ok() {
            systems.push((name, Some(mechanism), false));
        }
    }
    let mut cases = Vec::new();
    for (row, pages) in ROWS.into_iter().filter(|(_, pages)| !settings.quick || *pages < 4096) {
        let length = if pages < 4096 { Length::Planned } else { Length::Operations(LARGE_RUN) };
        for (system, mechanism, line) in systems.clone() {
            let ground = Rc::clone(&ground);
            let level = ground.level;
            let work = move |count| ground.psyncs(count, mechanism, pages, line, Preparation::None);
            cases.push(Case { length, ..Case::new(row, system, level, work).uncounted() });
        }
        let ground = Rc::clone(&ground);
        let level = ground.level;
        let work = move |count| ground.writes(count, pages);
        cases.push(Case { length, ..Case::new(row, "write, fdatasync", level, work).uncounted() });
    }
    for (system, mechanism, line) in systems {
        if line {
            continue;
        }
        let (one, two, three) = (Rc::clone(&ground), Rc::clone(&ground), Rc::clone(&ground));
        let level = ground.level;
        let work = move |count| one.psyncs(count, mechanism, 1, false, Preparation::Read);
        cases.push(Case::new("psync_1_read", system, level, work).uncounted());
        let work = move |count| three.psyncs(count, mechanism, 256, false, Preparation::Sustained);
        cases.push(Case::new("sustained_256", system, level, work).uncounted());
        let work = move |count| two.scans(count, mechanism);
        cases.push(Case::new("scan_page", system, level, work).uncounted());
    }
    Ok(cases)
}
