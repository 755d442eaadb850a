//! What a psync of a pool in shadowed mode costs, and how long it holds writers: of k values that
//! lie in pages of their own, against writing as many pages to a file that has its space and one
//! `fdatasync`, which is the least that durability costs there.
//!
//! A pool with 65,536 values of a page each, in about 270 MiB (`--quick`: 2,048, and no row of 4096
//! pages). Unit: nanoseconds an operation; the transaction that stores one word into each of k
//! values, spread over the pool, is not part of it.
//!
//! The rows, each with its operation:
//!
//! * `pool_psync_1` ... `pool_psync_4096`: a psync after k values were changed.
//! * `held_1` ... `held_4096`: the part of it during which no transaction can run.
//! * `first_store`: the first store into a page after a psync, within one transaction of 256:
//!   fault, note, undo entry.
//! * `next_store`: the same when the pages may be written already.
//!
//! The journal is trimmed meanwhile, by its own thread.
//!
//! Systems: `cenote`, `write, fdatasync`. On `/dev/shm`, the default, nothing can be synced, and
//! the level is `process`; `--dir` on a disk's file system gives `power`.

use crate::case::{Case, Failure, Length, POWER, PROCESS, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::figures::psync::ROWS;
use crate::place::{Settings, medium};
use cenote::{
    Durability, FormatOptions, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Store, field,
};
use cenote_medium::MediumKind;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "pool-psync",
    title: "Pools in shadowed mode: psync, and how long it holds writers",
    body: Body::Cases(cases),
};

const PAGE: usize = 4096;
/// Rows of the hold, as [`ROWS`].
const HELD: [&str; 4] = ["held_1", "held_16", "held_256", "held_4096"];
/// Values that a transaction of the rows about stores changes.
const STORES: u64 = 256;

/// More than half a page, so that no two share one.
#[derive(Persist)]
struct Value {
    word: u64,
    rest: [u64; 505],
}

struct Ground {
    pool: Pool,
    _store: Store,
    values: Vec<Ptr<Value>>,
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
        let options = OpenOptions { journal_half_len: 64 << 20, ..OpenOptions::default() };
        let store = Store::open_on(medium, &options)?;
        let count = if settings.quick { 2048 } else { 65_536 };
        let options = PoolOptions {
            mode: PoolMode::Shadowed,
            puddle_size: if settings.quick { 16 << 20 } else { 320 << 20 },
            ..PoolOptions::default()
        };
        let pool = store.create_pool("bench", &options)?;
        let mut values = Vec::new();
        while values.len() < count {
            pool.write(|tx| -> cenote::Result<()> {
                for word in 0..256 {
                    values.push(tx.alloc(Value { word, rest: [word; 505] })?);
                }
                Ok(())
            })?;
            if values.len().is_multiple_of(4096) {
                pool.psync()?;
            }
        }
        pool.psync()?;
        let file = tempfile::tempfile_in(directory.path())?;
        file.write_all_at(&vec![0; PAGE * 4096], 0)?;
        file.sync_all()?;
        Ok(Self { pool, _store: store, values, level, file, _directory: directory })
    }

    /// Changes `count` values, spread over the pool by `random`.
    fn change(&self, count: u64, random: u64) -> Result<(), Failure> {
        let (first, stride) = (random >> 20, (random >> 40) | 1);
        self.pool.write(|tx| -> cenote::Result<()> {
            for i in 0..count {
                // A stride that is prime to the number of values, which is a power of two: none
                // comes twice.
                let at = first.wrapping_add(i.wrapping_mul(stride)) as usize % self.values.len();
                tx.set(self.values[at], field!(Value, word), random ^ i)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn psyncs(&self, count: u64, values: u64, held: bool) -> Result<Sample, Failure> {
        let mut watch = Stopwatch::new();
        let mut sample = Sample::default();
        let mut random = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..count {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.change(values, random)?;
            let psync = watch.time(1, || self.pool.psync())?;
            sample.operations += 1;
            sample.elapsed += psync.held;
        }
        Ok(if held { sample } else { watch.sample() })
    }

    fn stores(&self, count: u64, first: bool) -> Result<Sample, Failure> {
        let mut watch = Stopwatch::new();
        for round in 0..count.div_ceil(STORES) {
            let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            if first {
                self.pool.psync()?;
            } else {
                self.change(STORES, random)?;
            }
            watch.time(STORES, || self.change(STORES, random))?;
        }
        self.pool.psync()?;
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
    const NAMES: [&str; 4] = ["pool_psync_1", "pool_psync_16", "pool_psync_256", "pool_psync_4096"];
    let ground = Rc::new(Ground::new(settings)?);
    let level = ground.level;
    let mut cases = Vec::new();
    for ((name, held), (_, values)) in NAMES.into_iter().zip(HELD).zip(ROWS) {
        if settings.quick && values >= 4096 {
            continue;
        }
        let length = if values < 4096 { Length::Planned } else { Length::Operations(4) };
        let (one, two, three) = (Rc::clone(&ground), Rc::clone(&ground), Rc::clone(&ground));
        let work = move |count| one.psyncs(count, values, false);
        cases.push(Case { length, ..Case::new(name, "cenote", level, work).uncounted() });
        let work = move |count| three.writes(count, values);
        cases.push(Case { length, ..Case::new(name, "write, fdatasync", level, work).uncounted() });
        let work = move |count| two.psyncs(count, values, true);
        cases.push(Case { length, ..Case::new(held, "cenote", level, work).uncounted() });
    }
    for (row, first) in [("first_store", true), ("next_store", false)] {
        let ground = Rc::clone(&ground);
        let work = move |count| ground.stores(count, first);
        cases.push(Case::new(row, "cenote", PROCESS, work).uncounted());
    }
    Ok(cases)
}
