//! The paper's Figures 6, 8 and 9: programs that compute in an object and psync it so many times a
//! second.
//!
//! The rows; an operation is one run of:
//!
//! * `lu`, `lu_1` ... `lu_8`: LU decomposition without pivoting of a matrix of doubles, in place;
//!   looked at after each column.
//! * `conv`, `conv_1` ...: 2D convolution, 3 x 3, of 4096 x 128 integers into a second image, again
//!   and again; after each pass.
//! * `tmm`, `tmm_1` ...: multiplication of matrices of integers, by tiles of 64 x 64; after each
//!   row of tiles.
//!
//! The number is how often a second the data is made durable: where the program looks, and that
//! much time has gone by, as in the paper. Without a number: never. Unit: nanoseconds a run;
//! filling the matrices is not part of it. The matrices are smaller than the paper's (1536 x 1536
//! instead of 3584 and 3072; `--quick`: 96 x 96 and few passes), so that a run takes some seconds;
//! those of a program lie in one object. Figure 8 is the rows with several threads, Figure 9 those
//! of several rates.
//!
//! Systems: `cenote`: psync of an object. `mmap, msync`: a shared mapping of a file, no crash
//! consistency (`fdatasync`, which is what `msync` of all of it does). `write, fsync`: memory that
//! is written to a file as a whole. `peers` has `lmdb`: pages that changed are put and
//! committed.
//!
//! On `/dev/shm`, the default, nothing has to be synced, and the level is `process`; `--dir` on a
//! disk's file system gives `power`.

use crate::case::{Case, Failure, Length, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::place::{Settings, level_of, medium};
use cenote::{Durability, FormatOptions, OpenOptions};
use cenote_object::{Attached, Objects, ObjectsOptions, Permission};
use cenote_sys::memory::{self, Access, Sharing};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "pmo-kernels",
    title: "Persistent memory objects, Figures 6, 8 and 9: computing with psync",
    body: Body::Cases(cases),
};

/// The system that ratios are to.
pub const REFERENCE: &str = "mmap, msync";

/// Rates a second.
const RATES: [u64; 5] = [0, 1, 2, 4, 8];
/// The rate of the paper's Figures 6 and 8, at which all systems are compared.
const COMPARED: u64 = 4;

const CONV_ROWS: usize = 4096;
const CONV_COLUMNS: usize = 128;
const TILE: usize = 64;

/// Memory of a program, and what makes it durable.
pub trait Memory {
    /// All of it, from an address that is a multiple of 4096.
    ///
    /// # Errors
    /// It is not accessible.
    fn bytes(&mut self) -> Result<&mut [u8], Failure>;

    /// Makes it durable as it is now.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> Result<(), Failure>;
}

/// Makes memory of so many bytes, of zeros.
pub type Make = Rc<dyn Fn(usize) -> Result<Box<dyn Memory>, Failure>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Lu,
    Conv,
    Tmm,
}

const KERNELS: [(Kernel, [&str; 5]); 3] = [
    (Kernel::Lu, ["lu", "lu_1", "lu_2", "lu_4", "lu_8"]),
    (Kernel::Conv, ["conv", "conv_1", "conv_2", "conv_4", "conv_8"]),
    (Kernel::Tmm, ["tmm", "tmm_1", "tmm_2", "tmm_4", "tmm_8"]),
];

/// Sizes of a run.
#[derive(Clone, Copy)]
struct Size {
    matrix: usize,
    passes: usize,
}

impl Size {
    fn of(settings: &Settings) -> Self {
        if settings.quick {
            Self { matrix: 128, passes: 4 }
        } else {
            Self { matrix: 1536, passes: 1500 }
        }
    }

    fn len(self, kernel: Kernel) -> usize {
        match kernel {
            Kernel::Lu => self.matrix * self.matrix * 8,
            Kernel::Conv => 2 * CONV_ROWS * CONV_COLUMNS * 4,
            Kernel::Tmm => 3 * self.matrix * self.matrix * 4,
        }
    }
}

/// Memory that is made durable at a rate.
struct Paced {
    memory: Box<dyn Memory>,
    every: Option<Duration>,
    last: Instant,
}

impl Paced {
    /// Where the program can be interrupted.
    fn look(&mut self) -> Result<(), Failure> {
        if self.every.is_some_and(|every| self.last.elapsed() >= every) {
            self.memory.sync()?;
            self.last = Instant::now();
        }
        Ok(())
    }
}

fn doubles(bytes: &mut [u8]) -> &mut [f64] {
    // SAFETY: any bytes are a double, and no other code has them.
    unsafe { bytes.align_to_mut::<f64>() }.1
}

fn integers(bytes: &mut [u8]) -> &mut [u32] {
    // SAFETY: any bytes are an integer, and no other code has them.
    unsafe { bytes.align_to_mut::<u32>() }.1
}

/// Deals rows of `width` out to threads.
fn for_rows<T: Send>(
    rows: &mut [T],
    width: usize,
    threads: u32,
    work: impl Fn(usize, &mut [T]) + Send + Sync + Copy,
) {
    if threads == 1 {
        rows.chunks_exact_mut(width).enumerate().for_each(|(number, row)| work(number, row));
        return;
    }
    let share = (rows.len() / width).div_ceil(threads as usize).max(1);
    std::thread::scope(|scope| {
        for (part, rows) in rows.chunks_mut(share * width).enumerate() {
            scope.spawn(move || {
                rows.chunks_exact_mut(width)
                    .enumerate()
                    .for_each(|(number, row)| work(part * share + number, row));
            });
        }
    });
}

fn lu(paced: &mut Paced, n: usize, threads: u32) -> Result<(), Failure> {
    for k in 0..n {
        let matrix = doubles(paced.memory.bytes()?);
        let (above, below) = matrix.split_at_mut((k + 1) * n);
        let pivot = &above[k * n..];
        for_rows(below, n, threads, |_, row| {
            let factor = row[k] / pivot[k];
            row[k] = factor;
            row[k + 1..]
                .iter_mut()
                .zip(&pivot[k + 1..])
                .for_each(|(to, from)| *to -= factor * from);
        });
        paced.look()?;
    }
    Ok(())
}

fn conv(paced: &mut Paced, passes: usize, threads: u32) -> Result<(), Failure> {
    const W: usize = CONV_COLUMNS;
    for pass in 0..passes {
        let (from, to) = integers(paced.memory.bytes()?).split_at_mut(CONV_ROWS * W);
        let from = &*from;
        for_rows(to, W, threads, |y, row| {
            let line = |y: usize| &from[y.min(CONV_ROWS - 1) * W..][..W];
            let lines = [line(y.saturating_sub(1)), line(y), line(y + 1)];
            for (x, to) in row.iter_mut().enumerate().take(W - 1).skip(1) {
                let sum: u32 = lines
                    .iter()
                    .zip([1, 2, 1])
                    .map(|(l, weight)| (l[x - 1] + 2 * l[x] + l[x + 1]).wrapping_mul(weight))
                    .fold(0, u32::wrapping_add);
                *to = sum.wrapping_add(pass as u32);
            }
        });
        paced.look()?;
    }
    Ok(())
}

fn tmm(paced: &mut Paced, n: usize, threads: u32) -> Result<(), Failure> {
    for tiles in (0..n).step_by(TILE) {
        let all = integers(paced.memory.bytes()?);
        let (factors, product) = all.split_at_mut(2 * n * n);
        let (a, b) = factors.split_at(n * n);
        for_rows(&mut product[tiles * n..(tiles + TILE) * n], n, threads, |number, row| {
            let line = &a[(tiles + number) * n..][..n];
            for columns in (0..n).step_by(TILE) {
                for (k, factor) in line.iter().enumerate() {
                    let from = &b[k * n + columns..][..TILE];
                    let to = &mut row[columns..columns + TILE];
                    to.iter_mut().zip(from).for_each(|(to, from)| {
                        *to = to.wrapping_add(factor.wrapping_mul(*from));
                    });
                }
            }
        });
        paced.look()?;
    }
    Ok(())
}

fn once(
    kernel: Kernel,
    size: Size,
    rate: u64,
    threads: u32,
    make: &Make,
) -> Result<Sample, Failure> {
    let mut memory = make(size.len(kernel))?;
    if kernel == Kernel::Lu {
        // Its diagonal is larger than the rest together, so that no pivot is small.
        for (i, value) in doubles(memory.bytes()?).iter_mut().enumerate() {
            let (row, column) = (i / size.matrix, i % size.matrix);
            *value = if row == column { 4.0 * size.matrix as f64 } else { (i % 7) as f64 / 3.0 };
        }
    } else {
        integers(memory.bytes()?)
            .iter_mut()
            .enumerate()
            .for_each(|(i, value)| *value = (i % 251) as u32);
    }
    memory.sync()?;
    let every = (rate > 0).then(|| Duration::from_micros(1_000_000 / rate));
    let mut paced = Paced { memory, every, last: Instant::now() };
    let mut watch = Stopwatch::new();
    watch.time(1, || match kernel {
        Kernel::Lu => lu(&mut paced, size.matrix, threads),
        Kernel::Conv => conv(&mut paced, size.passes, threads),
        Kernel::Tmm => tmm(&mut paced, size.matrix, threads),
    })?;
    Ok(watch.sample())
}

/// The cases of one system. `all_rates`: not only the one at which systems are compared.
pub fn cases_of(
    settings: &Settings,
    system: &'static str,
    level: &'static str,
    all_rates: bool,
    make: &Make,
) -> Vec<Case> {
    let size = Size::of(settings);
    let mut cases = Vec::new();
    for threads in settings.threads() {
        for (kernel, rows) in KERNELS {
            for (row, rate) in rows.into_iter().zip(RATES) {
                if rate != COMPARED && !all_rates {
                    continue;
                }
                let make = Rc::clone(make);
                let work = move |count: u64| {
                    let mut sample = Sample::default();
                    for _ in 0..count {
                        let one = once(kernel, size, rate, threads, &make)?;
                        sample.operations += one.operations;
                        sample.elapsed += one.elapsed;
                    }
                    Ok(sample)
                };
                let case = Case::new(row, system, level, work).uncounted();
                cases.push(Case {
                    threads,
                    length: Length::Operations(1),
                    warms_itself: true,
                    ..case
                });
            }
        }
    }
    cases
}

/// A store for objects in a directory of its own; what it lies on says which level it has.
pub struct Ground {
    /// The objects.
    pub objects: Objects,
    /// `process` or `power`.
    pub level: &'static str,
    /// Where other systems make their files.
    pub directory: Arc<tempfile::TempDir>,
}

impl core::fmt::Debug for Ground {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ground({:?})", self.objects)
    }
}

impl Ground {
    /// A new store, whose journal has halves of `half_len` bytes.
    ///
    /// # Errors
    /// What keeps it from being made.
    pub fn new(settings: &Settings, half_len: u64) -> Result<Self, Failure> {
        let directory = Arc::new(settings.temporary()?);
        let medium = medium(directory.path(), Durability::Process)?;
        cenote_store::format(medium.clone(), &FormatOptions::default())?;
        let (store, _) = cenote_object::Store::open(medium, OpenOptions::default())?;
        let options = ObjectsOptions { half_len, ..ObjectsOptions::default() };
        Ok(Self {
            objects: Objects::open(&store, &options)?,
            level: level_of(settings)?,
            directory,
        })
    }
}

struct Object {
    attached: Option<Attached>,
    objects: Objects,
}

impl Memory for Object {
    fn bytes(&mut self) -> Result<&mut [u8], Failure> {
        let attached =
            self.attached.as_mut().ok_or("the object is attached until it is dropped")?;
        Ok(attached.as_mut_slice()?)
    }

    fn sync(&mut self) -> Result<(), Failure> {
        let attached =
            self.attached.as_mut().ok_or("the object is attached until it is dropped")?;
        attached.psync()?;
        Ok(())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        drop(self.attached.take());
        let _ = self.objects.pdestroy("matrices", None);
    }
}

/// A shared mapping of a file, which has its space.
#[derive(Debug)]
pub struct Mapped {
    file: File,
    base: usize,
    len: usize,
}

impl Mapped {
    /// Of zeros.
    ///
    /// # Errors
    /// The file cannot be made or mapped.
    pub fn new(directory: &std::path::Path, len: usize) -> Result<Self, Failure> {
        let len = len.next_multiple_of(4096);
        let file = tempfile::tempfile_in(directory)?;
        file.write_all_at(&vec![0; len], 0)?;
        file.sync_all()?;
        let base = memory::reserve_anywhere(len, 4096)?;
        // SAFETY: inside our own reservation, which nothing uses.
        unsafe { memory::map_file(file.as_fd(), base, len, Access::ReadWrite, Sharing::Shared) }?;
        Ok(Self { file, base, len })
    }
}

impl Memory for Mapped {
    fn bytes(&mut self) -> Result<&mut [u8], Failure> {
        // SAFETY: our own mapping of a file that no other code has open; `&mut` excludes other
        // references.
        Ok(unsafe {
            core::slice::from_raw_parts_mut(
                core::ptr::with_exposed_provenance_mut(self.base),
                self.len,
            )
        })
    }

    fn sync(&mut self) -> Result<(), Failure> {
        Ok(self.file.sync_data()?)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own reservation; references borrow from `self`.
        let _ = unsafe { memory::release(self.base, self.len) };
    }
}

/// Memory that belongs to no file.
#[derive(Debug)]
pub struct Plain(memory::OwnedRegion);

impl Plain {
    /// Of zeros.
    ///
    /// # Errors
    /// There is not as much.
    pub fn new(len: usize) -> Result<Self, Failure> {
        Ok(Self(memory::anonymous(len)?))
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own memory, and `&mut` excludes other references.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// Memory that is written as a whole.
struct Written {
    file: File,
    memory: Plain,
}

impl Memory for Written {
    fn bytes(&mut self) -> Result<&mut [u8], Failure> {
        Ok(self.memory.bytes())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.file.write_all_at(self.memory.bytes(), 0)?;
        Ok(self.file.sync_all()?)
    }
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let half_len = if settings.quick { 1 << 20 } else { 64 << 20 };
    let ground = Rc::new(Ground::new(settings, half_len)?);
    let level = ground.level;
    let (one, two, three) = (Rc::clone(&ground), Rc::clone(&ground), ground);
    let object: Make = Rc::new(move |len| {
        one.objects.pcreate("matrices", len as u64, None, 0o600)?;
        let attached = one.objects.attach("matrices", Permission::ReadWrite, None)?;
        Ok(Box::new(Object { attached: Some(attached), objects: one.objects.clone() })
            as Box<dyn Memory>)
    });
    let mapped: Make =
        Rc::new(move |len| Ok(Box::new(Mapped::new(two.directory.path(), len)?) as _));
    let written: Make = Rc::new(move |len| {
        let file = tempfile::tempfile_in(three.directory.path())?;
        Ok(Box::new(Written { file, memory: Plain::new(len)? }) as _)
    });
    let mut cases = cases_of(settings, "cenote", level, true, &object);
    cases.extend(cases_of(settings, REFERENCE, level, true, &mapped));
    cases.extend(cases_of(settings, "write, fsync", level, false, &written));
    Ok(cases)
}
