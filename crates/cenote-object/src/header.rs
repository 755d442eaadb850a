//! The object's header: which session attached it for writing, and how that ended.
//!
//! It is written without a sync, because nothing depends on it: the store's lock decides which
//! session may attach, and the journal decides which data is true. After a loss of power it may be
//! old or torn; its checksum shows that it is torn.

use cenote_layout::header::{read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::object::{ObjectHeader, ObjectState};
use cenote_medium::{FileHandle, Medium, MediumError};
use cenote_sys::process;
use zerocopy::IntoBytes;

/// How the last writer of an object left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundState {
    /// It was detached, or never attached.
    Detached,
    /// Process `pid` ended, or let go of the store, without detaching it, in this boot of the
    /// machine.
    ProcessDied {
        /// The process.
        pid: u32,
    },
    /// The machine went down, or was booted again, while process `pid` had it attached.
    PowerLost {
        /// The process, of the earlier boot.
        pid: u32,
    },
    /// The header is torn or damaged. The data is not in doubt.
    Unknown,
}

impl FoundState {
    /// As a daemon and its clients say it: a number, and the process.
    pub(crate) const fn to_code(self) -> (u8, u32) {
        match self {
            Self::Detached => (0, 0),
            Self::ProcessDied { pid } => (1, pid),
            Self::PowerLost { pid } => (2, pid),
            Self::Unknown => (3, 0),
        }
    }

    pub(crate) const fn from_code((code, pid): (u8, u32)) -> Self {
        match code {
            0 => Self::Detached,
            1 => Self::ProcessDied { pid },
            2 => Self::PowerLost { pid },
            _ => Self::Unknown,
        }
    }
}

/// The process that has an object attached for writing. Numbers of processes are given again; with
/// the time at which it started it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
}

impl Writer {
    /// This process.
    pub(crate) fn this() -> Self {
        let pid = process::pid();
        Self { pid, start_ticks: process::start_ticks(pid).unwrap_or(0) }
    }
}

impl core::fmt::Display for FoundState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Detached => f.write_str("detached"),
            Self::ProcessDied { pid } => write!(f, "process {pid} ended without detaching it"),
            Self::PowerLost { pid } => {
                write!(f, "the machine stopped while process {pid} had it attached")
            }
            Self::Unknown => f.write_str("its header is torn; its data is not in doubt"),
        }
    }
}

/// Reads how an object was left, as `asks` is told: what it says itself, of an answer that was
/// lost, is no predecessor's.
pub(crate) fn found(
    file: &FileHandle,
    offset: u64,
    object: Uuid,
    medium: &dyn Medium,
    asks: Option<Writer>,
) -> Result<FoundState, MediumError> {
    let mut bytes = [0; size_of::<ObjectHeader>()];
    file.read_exact_at(offset, &mut bytes)?;
    let Ok(header) = read::<ObjectHeader>(&bytes, false) else { return Ok(FoundState::Unknown) };
    if header.object != object {
        return Ok(FoundState::Unknown);
    }
    if header.state == ObjectState::Detached as u32 {
        return Ok(FoundState::Detached);
    }
    let writer =
        Writer { pid: u32::try_from(header.pid).unwrap_or(0), start_ticks: header.start_ticks };
    let pid = writer.pid;
    Ok(match header.boot_id == medium.boot_id() {
        true if asks == Some(writer) => FoundState::Detached,
        true => FoundState::ProcessDied { pid },
        false => FoundState::PowerLost { pid },
    })
}

/// Writes that a process has the object attached for writing, or that none has.
pub(crate) fn write(
    file: &FileHandle,
    offset: u64,
    object: Uuid,
    writer: Option<Writer>,
    medium: &dyn Medium,
) -> Result<(), MediumError> {
    let mut header = ObjectHeader::detached(object);
    if let Some(writer) = writer {
        header.state = ObjectState::Write as u32;
        header.boot_id = medium.boot_id();
        header.pid = u64::from(writer.pid);
        header.start_ticks = writer.start_ticks;
        header.attached_at_s = medium.now_s();
    }
    seal(&mut header);
    file.write_at(offset, header.as_bytes())
}
