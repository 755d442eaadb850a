//! What protection at rest costs, by mode: attach, read, detach; attach, write 16 KiB, psync,
//! detach; the first load from a page, and the first store into one.
//!
//! ```text
//! cargo bench -p cenote-object --bench at_rest_costs -- DIR [OPERATIONS [MODE ROW]]
//! ```
//!
//! Microseconds: the median of the operations, and the twentieth part that is fastest in
//! parentheses (the first accesses are to random pages, some of them twice). Modes take turns, so
//! that what else the machine does concerns all of them. `MODE` and `ROW` (`read`, `write`, `load`,
//! `store`) choose one alone, for counting its system calls: `strace -f -c`.

use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_object::{
    Attached, Keyring, MasterKey, Mode, ObjectOptions, Objects, ObjectsOptions, Permission, Store,
};
use cenote_store::{FormatOptions, OpenOptions};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const MODES: [Mode; 5] =
    [Mode::None, Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];
const ROWS: [&str; 4] = ["read", "write", "load", "store"];
const SMALL: u64 = 32 << 10;
const LARGE: u64 = 64 << 20;
const PAGE: usize = 4096;

struct Ground {
    objects: Objects,
    key: Keyring,
    random: u64,
}

impl Ground {
    fn new(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(dir, &MediumOptions::default())?);
        cenote_store::format(medium.clone(), &FormatOptions::default())?;
        let (store, _) = Store::open(medium, OpenOptions::default())?;
        let objects = Objects::open(&store, &ObjectsOptions::default())?;
        let mut bytes: [u8; 32] = core::array::from_fn(|i| i as u8 * 7);
        Ok(Self { objects, key: Keyring::new(MasterKey::from_bytes(&mut bytes)?), random: 1 })
    }

    fn key(&self, mode: Mode) -> Option<&Keyring> {
        mode.has_key().then_some(&self.key)
    }

    fn attach(
        &self,
        mode: Mode,
        size: &str,
        permission: Permission,
    ) -> Result<Attached, Box<dyn Error>> {
        Ok(self.objects.attach(&format!("{size}-{mode}"), permission, self.key(mode))?)
    }

    fn make(&self, mode: Mode, size: &str, bytes: u64) -> Result<(), Box<dyn Error>> {
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        self.objects.pcreate_with(&format!("{size}-{mode}"), bytes, self.key(mode), &options)?;
        let mut object = self.attach(mode, size, Permission::ReadWrite)?;
        for part in (0..bytes as usize).step_by(4 << 20) {
            let end = (part + (4 << 20)).min(bytes as usize);
            object.as_mut_slice()?[part..end].fill(3);
            object.psync()?;
        }
        Ok(object.detach()?)
    }

    fn next(&mut self) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    /// One operation of a row, or some first touches; microseconds of each.
    fn operate(
        &mut self,
        mode: Mode,
        row: &str,
        times: &mut Vec<f64>,
    ) -> Result<(), Box<dyn Error>> {
        let value = self.next();
        let micros = |start: Instant| start.elapsed().as_secs_f64() * 1e6;
        match row {
            "read" => {
                let start = Instant::now();
                let object = self.attach(mode, "small", Permission::Read)?;
                object.load(0, SMALL)?;
                let copy = object.as_slice().to_vec();
                black_box(copy.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
                object.detach()?;
                times.push(micros(start));
            }
            "write" => {
                let start = Instant::now();
                let mut object = self.attach(mode, "small", Permission::ReadWrite)?;
                object.as_mut_slice()?[value % 2 * (16 << 10)..][..16 << 10].fill(value as u8);
                object.psync()?;
                object.detach()?;
                times.push(micros(start));
            }
            row => {
                let mut object = self.attach(mode, "large", Permission::ReadWrite)?;
                let data = object.as_mut_slice()?;
                for _ in 0..16 {
                    // Not one behind another.
                    let page = self.next() % (LARGE as usize / PAGE / 2) * 2;
                    let start = Instant::now();
                    if row == "load" {
                        black_box(data[page * PAGE]);
                    } else {
                        data[page * PAGE] = value as u8;
                    }
                    times.push(micros(start));
                }
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` adds a word of its own.
    let given = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let arguments: Vec<String> = given.collect();
    let dir = arguments.first().ok_or("which directory?")?;
    let operations: usize = arguments.get(1).map_or(Ok(300), |text| text.parse())?;
    let wanted = |at: usize, name: &str| arguments.get(at).is_none_or(|text| text == name);
    let directory = tempfile::tempdir_in(dir)?;
    let mut ground = Ground::new(directory.path())?;
    let modes: Vec<Mode> = MODES.into_iter().filter(|mode| wanted(2, &mode.to_string())).collect();
    for mode in &modes {
        ground.make(*mode, "small", SMALL)?;
        ground.make(*mode, "large", LARGE)?;
    }
    ground.objects.checkpoint()?;
    for row in ROWS.into_iter().filter(|row| wanted(3, row)) {
        let mut times = vec![Vec::new(); modes.len()];
        for _ in 0..operations {
            for (mode, times) in modes.iter().zip(&mut times) {
                ground.operate(*mode, row, times)?;
            }
        }
        for (mode, times) in modes.iter().zip(&mut times) {
            times.sort_unstable_by(f64::total_cmp);
            println!(
                "{row:>5}  {:<12} {:8.1} ({:.1})",
                mode.to_string(),
                times[times.len() / 2],
                times[times.len() / 20]
            );
        }
    }
    Ok(())
}
