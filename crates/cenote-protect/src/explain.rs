//! Explains a fault: what the address is for.

use crate::table::{self, Copied, NAME_LEN, RangeKind};
use cenote_sys::{backtrace, fault, fork_guard};
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;

/// A range with an owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Explained {
    /// What it is for.
    pub kind: RangeKind,
    /// Its addresses.
    pub range: Range<usize>,
    name: [u8; NAME_LEN],
}

impl Explained {
    fn new(copied: Copied) -> Self {
        let Copied { kind, base, len, name } = copied;
        Self { kind, range: base..base + len, name }
    }

    /// What it belongs to, as its owner was told: `pool "x"`. Of a long name, the beginning.
    #[must_use]
    pub fn what(&self) -> &str {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        core::str::from_utf8(&self.name[..len]).unwrap_or_default()
    }
}

impl fmt::Debug for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(f, "Explained({:?}, {:?}, {start:#x}..{end:#x})", self.kind, self.what())
    }
}

/// The narrowest range that the address lies in; of two that are equally long, one of them. `None`:
/// it lies in none, or that one comes or goes just now. Async-signal-safe: it takes no lock,
/// allocates nothing, and uses less than a KiB of stack.
#[must_use]
pub fn explain(address: usize) -> Option<Explained> {
    let token = fork_guard::current();
    if token == 0 {
        return None;
    }
    let mut narrowest: Option<Copied> = None;
    for slot in table::slots() {
        let most = narrowest.as_ref().map_or(usize::MAX, |known| known.len);
        let wanted = |base: usize, len: usize| address.wrapping_sub(base) < len && len < most;
        if let Some(copied) = slot.copy_if(token, wanted) {
            narrowest = Some(copied);
        }
    }
    narrowest.map(Explained::new)
}

/// From now on a stray write into metadata, a log or protected data, and a stray access to a guard
/// page, is told of on standard error, before the process ends.
///
/// # Errors
/// The handler of faults cannot be installed.
pub(crate) fn tell_of_faults() -> io::Result<()> {
    backtrace::learn_program();
    // SAFETY: `tell` takes no lock, allocates nothing, and touches only its stack and the table.
    unsafe { fault::explain_by(tell) }
}

/// A line on the stack.
struct StackLine {
    bytes: [u8; 256],
    len: usize,
}

impl fmt::Write for StackLine {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + part.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.len += part.len();
        Ok(())
    }
}

/// Async-signal-safe.
fn tell(address: usize) {
    let Some(found) = explain(address) else { return };
    let what = match found.kind {
        RangeKind::Metadata if fault::is_store() => "metadata",
        RangeKind::Log if fault::is_store() => "a log",
        RangeKind::Data if fault::is_store() => "data",
        RangeKind::Guard => "a guard page beside metadata",
        _ => return,
    };
    let access = if fault::is_store() { "write" } else { "read" };
    let mut line = StackLine { bytes: [0; 256], len: 0 };
    let said = writeln!(
        line,
        "cenote: stray {access} at {address:#x}, {what} of {}: this process ends, and its store is \
         unchanged",
        found.what()
    );
    if said.is_ok() {
        fault::tell(core::str::from_utf8(&line.bytes[..line.len]).unwrap_or_default());
    }
    if found.kind == RangeKind::Data {
        tell_where();
    }
}

/// Calls that a report names.
const CALLS: usize = 24;

/// Reports with calls in a process: the first one ends it, unless its own handler goes on.
const REPORTS: u32 = 64;

/// Says where this thread is, by places in the program's file, which debuggers know.
fn tell_where() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) >= REPORTS {
        return;
    }
    let (at, stack) = fault::place();
    backtrace::calls(at, stack, CALLS, &mut |place| {
        let mut line = StackLine { bytes: [0; 256], len: 0 };
        if writeln!(line, "cenote:   at {place:#x} of the program").is_ok() {
            fault::tell(core::str::from_utf8(&line.bytes[..line.len]).unwrap_or_default());
        }
    });
}

/// Says once why the process ends: its store cannot go through. Async-signal-safe.
pub(crate) fn tell_once() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        fault::tell(
            "cenote: the kernel refuses to make a page writable (mprotect: no memory, or too many \
             mappings): this process ends; the next open finds what was committed; give the \
             process more memory, or raise vm.max_map_count\n",
        );
    }
}
