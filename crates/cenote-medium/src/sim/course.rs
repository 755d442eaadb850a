//! Applies planted faults to calls of the simulated medium, and makes the errors of calls.

use super::fault::{FaultEffect, FaultPoint, Rest};
use super::live::Live;
use super::medium::SimMedium;
use crate::{FileName, MediumError, Operation};
use std::io;
use std::sync::MutexGuard;

type Result<T> = core::result::Result<T, MediumError>;

pub(super) const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

pub(super) fn system(op: Operation, name: &str, errno: i32) -> MediumError {
    MediumError::from_io(op, name, io::Error::from_raw_os_error(errno))
}

pub(super) fn not_found(op: Operation, name: &str) -> MediumError {
    MediumError::NotFound { op, name: FileName::new(name) }
}

pub(super) fn bad_range(
    op: Operation,
    name: &str,
    addr: u64,
    len: u64,
    reason: &'static str,
) -> MediumError {
    MediumError::BadRange { op, name: FileName::new(name), addr, len, reason }
}

/// Whether a file of a store can have this name.
pub(super) fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(allowed)
    };
    FileName::new(name).as_str() == name && name.split('/').all(part)
}

/// What a fault leaves of a call.
pub(super) enum Course {
    /// Do it.
    Normal,
    /// Say that it was done.
    Pretend,
    /// Write so many eighths, then come to the rest.
    Short(u8, Rest),
}

impl Course {
    /// What becomes of a call that cannot be cut short.
    pub(super) fn whole(self, op: Operation, name: &str) -> Result<Self> {
        match self {
            Self::Short(_, Rest::Written) => Ok(Self::Normal),
            Self::Short(_, rest) => failed(rest, op, name).map(|()| Self::Normal),
            course => Ok(course),
        }
    }
}

/// What the second call of a short write says.
fn failed(rest: Rest, op: Operation, name: &str) -> Result<()> {
    match rest {
        Rest::Written => Ok(()),
        Rest::NoSpace => Err(system(op, name, ENOSPC)),
        Rest::Io => Err(system(op, name, EIO)),
    }
}

impl SimMedium {
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.core.live()
    }

    /// Checks a name, and meets the faults that are planted for this call.
    pub(super) fn begin(live: &mut Live, op: Operation, name: &str) -> Result<Course> {
        Self::meet(live, op, name)?.whole(op, name)
    }

    /// The same for a call that may be cut short.
    pub(super) fn meet(live: &mut Live, op: Operation, name: &str) -> Result<Course> {
        let may_be_root = matches!(op, Operation::SyncDirectory | Operation::List);
        if !(is_name(name) || (may_be_root && name.is_empty())) {
            return Err(MediumError::BadName { op, name: FileName::new(name) });
        }
        match live.fault(FaultPoint::Operation(op), name) {
            None => Ok(Course::Normal),
            Some(FaultEffect::Drop) => Ok(Course::Pretend),
            Some(FaultEffect::NoSpace) => Err(system(op, name, ENOSPC)),
            Some(FaultEffect::Io) => Err(system(op, name, EIO)),
            Some(FaultEffect::Errno(errno)) => Err(system(op, name, errno)),
            Some(FaultEffect::ReadOnly) => Err(system(op, name, EROFS)),
            Some(FaultEffect::Short { eighths, then }) => Ok(Course::Short(eighths, then)),
        }
    }

    /// Writes to a file: one event, or one for each part of a write that is cut short.
    pub(super) fn write_to(
        &self,
        live: &mut Live,
        name: &str,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let op = Operation::Write;
        self.may_change(op, name)?;
        let course = Self::meet(live, op, name)?;
        let inode = live.inode(op, name)?;
        let len = data.len() as u64;
        let Some(_) = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()) else {
            return Err(bad_range(op, name, offset, len, "beyond the largest offset of a file"));
        };
        match course {
            Course::Pretend => return Ok(()),
            Course::Normal => live.write(inode, offset, data),
            Course::Short(eighths, rest) => {
                let (part, behind) = data.split_at(data.len() * usize::from(eighths.min(8)) / 8);
                live.write(inode, offset, part);
                failed(rest, op, name)?;
                live.write(inode, offset + part.len() as u64, behind);
            }
        }
        Ok(())
    }

    pub(super) fn may_change(&self, op: Operation, name: &str) -> Result<()> {
        match self.core.options.read_only {
            true => Err(MediumError::ReadOnly { op, name: FileName::new(name) }),
            false => Ok(()),
        }
    }

    /// The same for calls that change something.
    pub(super) fn begin_change(
        &self,
        live: &mut Live,
        op: Operation,
        name: &str,
    ) -> Result<Course> {
        self.may_change(op, name)?;
        Self::begin(live, op, name)
    }

    /// The same for calls that have to return something: they cannot pretend.
    pub(super) fn begin_read(live: &mut Live, op: Operation, name: &str) -> Result<()> {
        match Self::begin(live, op, name)? {
            Course::Pretend => Err(system(op, name, EIO)),
            Course::Normal | Course::Short(..) => Ok(()),
        }
    }
}
