//! Poseidon's Figure 3: two attacks on the metadata of a heap, by a program that stores where it
//! must not (section 3.2).
//!
//! A heap that keeps the size of a block before the block loses data by one stray write of 8 bytes:
//!
//! * `overlap`: a heap is filled with blocks of 64 bytes. The word 16 bytes before one of them is
//!   set to 1,088, and the block is freed. Unit: blocks that the heap then hands out although a
//!   part of them is in use. Right is 0.
//! * `leak`: a heap is filled with blocks of 2 MiB. The word 16 bytes before each is set to 64, and
//!   all are freed. Unit: blocks that the heap cannot hand out any more. Right is 0.
//!
//! Each attack runs in a child with a heap of its own, because it may end the process. Guards of
//! metadata end it at its first store into metadata, which changes nothing: 0 blocks. The figure
//! fails if a child ends otherwise. Other systems join by a [`Victim`].

use crate::allocator::Allocator;
use crate::case::{Failure, POWER};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::logged::Logged;
use crate::place::Settings;
use crate::runner::Row;
use crate::traced::Traced;
use cenote::{Durability, PoolOptions};
use cenote_heap::logged::LoggedOptions;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::{Arc, OnceLock};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "poseidon3",
    title: "Poseidon, Figure 3: attacks on metadata of heaps",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--attack-heap";

/// Bytes that a heap may take.
pub const HEAP_BYTES: u64 = 64 << 20;

/// How a program ends that a guard has stopped, and the beginning of what it says.
const SIGSEGV: i32 = 11;
const STOPPED: &str = "cenote: stray write at ";

/// Bytes from the word that an attack changes to the block.
const BEFORE: usize = 16;

/// A system that is attacked.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// Its name in the rows.
    pub system: &'static str,
    /// Opens a heap of about [`HEAP_BYTES`] with files in this directory.
    pub open: fn(&Path) -> Result<Arc<dyn Allocator>, Failure>,
}

/// Heaps of this project.
const OURS: [Victim; 2] =
    [Victim { system: "cenote", open: traced }, Victim { system: "logged", open: logged }];

static OTHERS: OnceLock<&'static [Victim]> = OnceLock::new();

/// Other systems that take part from now on.
pub fn join_by(victims: &'static [Victim]) {
    let _ = OTHERS.set(victims);
}

fn victims() -> impl Iterator<Item = Victim> {
    OURS.into_iter().chain(OTHERS.get().copied().unwrap_or_default().iter().copied())
}

fn traced(directory: &Path) -> Result<Arc<dyn Allocator>, Failure> {
    let settings = Settings { directory: directory.to_owned(), ..Settings::default() };
    let options = PoolOptions { size_max: HEAP_BYTES, ..PoolOptions::default() };
    Ok(Traced::open_with(&settings, Durability::Power, &options)?)
}

fn logged(directory: &Path) -> Result<Arc<dyn Allocator>, Failure> {
    let settings = Settings { directory: directory.to_owned(), ..Settings::default() };
    let options = (&LoggedOptions::default(), HEAP_BYTES);
    Ok(Logged::open_with(&settings, Durability::Power, options)?)
}

/// An attack: its row, the size of its blocks, what it stores before a block, and whether it does
/// that to all blocks.
#[derive(Clone, Copy, Debug)]
struct Attack {
    row: &'static str,
    block: usize,
    stray: u64,
    frees_all: bool,
}

const ATTACKS: [Attack; 2] = [
    Attack { row: "overlap", block: 64, stray: 1088, frees_all: false },
    Attack { row: "leak", block: 2 << 20, stray: 64, frees_all: true },
];

impl Attack {
    /// Runs it: blocks that were in use, and the number of the row.
    fn run(&self, heap: &dyn Allocator) -> (u64, u64) {
        let held = self.fill(heap);
        let mut live: BTreeSet<usize> = held.iter().map(|block| block.addr()).collect();
        let freed = if self.frees_all { &held[..] } else { &held[held.len() / 2..][..1] };
        for &block in freed {
            // SAFETY: memory of the heap's mapping, before one of its blocks: not of this program,
            // which is the attack. No reference leads there.
            unsafe { block.wrapping_sub(BEFORE).cast::<u64>().write_volatile(self.stray) };
            // SAFETY: freed once.
            if unsafe { heap.free(block) } {
                live.remove(&block.addr());
            }
        }
        let again = self.fill(heap);
        let value = if self.frees_all {
            freed.len().saturating_sub(again.len())
        } else {
            again.iter().filter(|block| self.is_in_use(block.addr(), &mut live)).count()
        };
        (held.len() as u64, value as u64)
    }

    /// Whether a new block shares a byte with one of `live`, where it is from now on.
    fn is_in_use(&self, addr: usize, live: &mut BTreeSet<usize>) -> bool {
        let near = addr.saturating_sub(self.block - 1)..addr + self.block;
        let shares = live.range(near).next().is_some();
        live.insert(addr);
        shares
    }

    /// Blocks until there is none.
    fn fill(&self, heap: &dyn Allocator) -> Vec<*mut u8> {
        std::iter::repeat_with(|| heap.alloc(self.block))
            .take_while(|block| !block.is_null())
            .take(HEAP_BYTES as usize / 16)
            .collect()
    }
}

/// What a child does: arguments are [`CHILD`], the attack, the system, a directory.
pub fn child(arguments: &[String]) -> ExitCode {
    let attacked = || -> Result<(u64, u64), Failure> {
        let found = match arguments {
            [_, row, system, directory] => ATTACKS
                .iter()
                .find(|attack| attack.row == row)
                .zip(victims().find(|victim| victim.system == system))
                .map(|found| (found, directory)),
            _ => None,
        };
        let Some(((attack, victim), directory)) = found else {
            return Err(format!("{CHILD} is only for this program itself").into());
        };
        let heap = (victim.open)(Path::new(directory))?;
        let result = attack.run(&*heap);
        // Its metadata may be damaged: nothing is closed.
        std::mem::forget(heap);
        Ok(result)
    };
    match attacked() {
        Ok((held, value)) => {
            println!("{held} {value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What an attack came to, in words, and the number of its row.
fn outcome(ran: &Output) -> Result<(String, u64), String> {
    let why = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.signal() == Some(SIGSEGV) && why.starts_with(STOPPED) {
        return Ok(("stopped at a store into metadata".into(), 0));
    }
    let said = String::from_utf8_lossy(&ran.stdout);
    let mut numbers = said.split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(held)), Some(Ok(value))) => Ok((format!("{held} blocks in use"), value)),
        _ => Err(why),
    }
}

fn report(settings: &Settings, filter: &Filter, _: usize, out: &mut dyn Write) -> Rows {
    let mut rows = Vec::new();
    for attack in ATTACKS {
        for victim in victims() {
            if !filter.admits(attack.row, victim.system, POWER) {
                continue;
            }
            let directory = settings.temporary()?;
            let ran = Command::new(std::env::current_exe()?)
                .args([CHILD, attack.row, victim.system])
                .arg(directory.path())
                .output()?;
            let (told, value) = outcome(&ran).map_err(|why| {
                format!("{}, {}: {} {why}", attack.row, victim.system, ran.status)
            })?;
            writeln!(out, "{}, {}: {told}", attack.row, victim.system)?;
            rows.push(Row::of_values(
                FIGURE.name,
                attack.row.into(),
                (victim.system, POWER, 1),
                "blocks",
                vec![value as f64],
            ));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;
    use std::sync::Mutex;

    /// Bytes of which a block is a multiple, with the word of its size before it.
    const UNIT: usize = 128;

    /// A heap that believes the size before a block, as the attacked one of the paper does.
    struct Believing {
        memory: NonNull<u8>,
        taken: Mutex<Vec<bool>>,
    }

    // SAFETY: the memory is leaked and of this value alone; the units are behind a lock.
    unsafe impl Send for Believing {}
    // SAFETY: as above.
    unsafe impl Sync for Believing {}

    impl Believing {
        fn new(bytes: usize) -> Self {
            let words = vec![0u128; bytes / size_of::<u128>()].leak();
            let memory = NonNull::from(words).cast();
            Self { memory, taken: Mutex::new(vec![false; bytes / UNIT]) }
        }
    }

    // SAFETY: blocks lie in leaked memory, at multiples of 16.
    unsafe impl Allocator for Believing {
        fn alloc(&self, size: usize) -> *mut u8 {
            let mut taken = self.taken.lock().expect("no thread panics with it");
            let units = (size + BEFORE).div_ceil(UNIT);
            let mut free = 0;
            let end = taken.iter().position(|taken| {
                free = if *taken { 0 } else { free + 1 };
                free == units
            });
            let Some(end) = end else { return std::ptr::null_mut() };
            let first = end + 1 - units;
            taken[first..=end].fill(true);
            // SAFETY: inside the memory: the units are there.
            let block = unsafe { self.memory.as_ptr().add(first * UNIT + BEFORE) };
            // SAFETY: the word before the block, in its first unit.
            unsafe { block.sub(BEFORE).cast::<u64>().write(size as u64) };
            block
        }

        unsafe fn free(&self, block: *mut u8) -> bool {
            let mut taken = self.taken.lock().expect("no thread panics with it");
            // SAFETY: the word before one of its blocks.
            let size = unsafe { block.sub(BEFORE).cast::<u64>().read() } as usize;
            let first = (block.addr() - self.memory.addr().get()) / UNIT;
            taken[first..][..size.div_ceil(UNIT)].fill(false);
            true
        }
    }

    #[test]
    fn a_heap_that_believes_what_lies_before_its_blocks_loses_by_both_attacks() {
        let heap = Believing::new(64 << 10);
        assert_eq!(ATTACKS[0].run(&heap), (512, 8));
        let heap = Believing::new(8 << 20);
        assert_eq!(ATTACKS[1].run(&heap), (3, 3));
    }

    #[test]
    fn both_attacks_do_nothing_to_a_logged_heap() {
        let settings = Settings::default();
        for attack in ATTACKS {
            let options = (&LoggedOptions::default(), 24 << 20);
            let heap = Logged::open_with(&settings, Durability::Power, options).expect("a heap");
            let (held, value) = attack.run(&*heap);
            assert!(held > 2, "{}: {held} blocks", attack.row);
            assert_eq!(value, 0, "{}", attack.row);
            for (_, sub_heap) in heap.heap.sub_heaps() {
                assert_eq!(sub_heap.check().damage, [], "{}", attack.row);
            }
        }
    }

    #[test]
    fn blocks_that_share_some_bytes_only_are_found() {
        let mut live = BTreeSet::from([1000]);
        let of_64 = ATTACKS[0];
        for (addr, shares) in [(936, false), (937, true), (1063, true), (1127, false)] {
            let mut live = live.clone();
            assert_eq!(of_64.is_in_use(addr, &mut live), shares, "{addr}");
        }
        assert!(!of_64.is_in_use(2000, &mut live) && of_64.is_in_use(2000, &mut live));
    }
}
