//! Writes by line, as the children of Figures 4 and 5 count and tell them.

use crate::case::Failure;
use crate::runner::Row;
use crate::stores::{self, LineCounts};
use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};

/// Writes of the lines of a system that were written at all.
#[derive(Clone, Debug, PartialEq)]
pub struct LineWrites {
    /// Writes of each line, least first.
    counts: Vec<u32>,
}

impl LineWrites {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// Lines that were written.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.counts.len()
    }

    /// Writes of a line, on the average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.total() as f64 / self.lines().max(1) as f64
    }

    /// The writes that a part of all lines does not go beyond; 1: the most writes of a line.
    #[must_use]
    pub fn quantile(&self, part: f64) -> u32 {
        let at = (self.lines() as f64 * part).ceil() as usize;
        self.counts.get(at.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// Rows: writes in all, lines, and writes of a line.
    #[must_use]
    pub fn rows(
        &self,
        figure: &'static str,
        of: &str,
        (system, level): (&'static str, &'static str),
    ) -> Vec<Row> {
        let row = |name: &str, unit, value: f64| {
            let system = (system, level, 1);
            Row::of_values(figure, format!("{name} {of}"), system, unit, vec![value])
        };
        vec![
            row("total", "writes", self.total() as f64),
            row("lines", "lines", self.lines() as f64),
            row("mean", "writes", self.mean()),
            row("p99", "writes", self.quantile(0.99).into()),
            row("p99.9", "writes", self.quantile(0.999).into()),
            row("max", "writes", self.quantile(1.0).into()),
        ]
    }

    /// What a child says, on one line: how often each number of writes occurs.
    fn told(&self) -> String {
        let mut words = vec!["writes".to_owned()];
        for of in self.counts.chunk_by(|a, b| a == b) {
            words.extend(of.first().map(|count| format!("{count}x{}", of.len())));
        }
        words.join(" ")
    }

    fn heard(line: &str) -> Option<Self> {
        let mut counts = Vec::new();
        for word in line.strip_prefix("writes")?.split_whitespace() {
            let (count, times) = word.split_once('x')?;
            counts.extend(std::iter::repeat_n(count.parse::<u32>().ok()?, times.parse().ok()?));
        }
        Some(Self { counts })
    }
}

/// Counts the stores of `work` into a range, but for so many lines at its beginning.
///
/// # Errors
/// As [`stores::start`], and those of `work`.
///
/// # Safety
/// As [`stores::start`].
pub unsafe fn counted(
    (range, skipped): (Range<usize>, usize),
    counts: LineCounts,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<LineWrites, Failure> {
    // SAFETY: handed on to the caller.
    unsafe { stores::start(range, skipped, counts) }?;
    let done = work();
    let counts = stores::finish()?;
    done?;
    Ok(LineWrites { counts })
}

/// Bytes that the C library's heap has at least when stores are counted.
const HEAP_BYTES: usize = 256 << 20;

/// Bytes by which it grows to that.
const GROWN_BYTES: usize = 1 << 19;

/// Lines at the beginning of that heap with the table of the cache of the thread: its first block,
/// of 656 bytes. They do not count: a system that had that table in other memory would not write it
/// there.
pub const TABLE_LINES: usize = 672usize.div_ceil(stores::LINE);

/// Lets the C library's malloc have one heap, from which all blocks come that are allocated from
/// now on, and gives its pages, with room for their counts.
///
/// # Errors
/// It does not do what it is told.
pub fn heap_of_glibc() -> Result<(Range<usize>, LineCounts), Failure> {
    const PAGE: usize = 4096;
    // Before the heap has room for it: the C library maps it elsewhere.
    let counts = LineCounts::of(2 * HEAP_BYTES);
    let top = HEAP_BYTES as libc::c_int;
    // SAFETY: options of this process's malloc, and a block that is freed at once.
    let (begin, end) = unsafe {
        let is_set = [
            libc::mallopt(libc::M_ARENA_MAX, 1),
            libc::mallopt(libc::M_MMAP_THRESHOLD, 2 * GROWN_BYTES as libc::c_int),
            libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
            libc::mallopt(libc::M_TOP_PAD, top),
        ];
        if is_set.contains(&0) {
            return Err("mallopt refuses".into());
        }
        let before = libc::sbrk(0).addr();
        libc::free(std::hint::black_box(libc::malloc(GROWN_BYTES)));
        (before, libc::sbrk(0).addr())
    };
    if end < begin + HEAP_BYTES {
        return Err("the C library's heap did not grow where it was".into());
    }
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[heap]")).ok_or("there is no heap")?;
    let start = line.split('-').next().ok_or("a line of maps without an address")?;
    let start = usize::from_str_radix(start, 16)?;
    Ok((start..end / PAGE * PAGE, counts))
}

/// What a child of a figure does: counts, and says what it counted.
pub fn child(count: impl FnOnce() -> Result<LineWrites, Failure>) -> ExitCode {
    match count() {
        Ok(writes) => {
            println!("{}", writes.told());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program as a child with these arguments and variables, and hears what it counted.
///
/// # Errors
/// It fails, with its own words.
pub fn run_child(arguments: &[&str], variables: &[(&str, &str)]) -> Result<LineWrites, Failure> {
    let ran = Command::new(std::env::current_exe()?)
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let heard = said.lines().find_map(LineWrites::heard);
    heard.ok_or_else(|| {
        format!("{arguments:?}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr)).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let writes = LineWrites { counts: vec![1, 1, 1, 2, 9] };
        assert_eq!(writes.told(), "writes 1x3 2x1 9x1");
        assert_eq!(LineWrites::heard(&writes.told()), Some(writes.clone()));
        assert_eq!(LineWrites::heard("writes 3"), None);
        assert_eq!((writes.total(), writes.lines(), writes.mean()), (14, 5, 2.8));
        assert_eq!([0.2, 0.6, 0.8, 0.99, 1.0].map(|q| writes.quantile(q)), [1, 1, 2, 9, 9]);
    }
}
