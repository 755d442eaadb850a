//! Faults that a test plants into a simulated medium: errors that are reported, and lies that are
//! not.
//!
//! Invariant: a fault hits the calls that it describes after skipping `skip` of them, once, unless
//! it repeats. A test that runs with `skip` = 0, 1, 2, ... until nothing was hit has failed every
//! single call once.

use crate::Operation;

/// Which calls a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultPoint {
    /// Every file operation that can fail.
    AnyOperation,
    /// One kind of file operation.
    Operation(Operation),
    /// Flushes of cache lines.
    Flush,
    /// Fences.
    Fence,
    /// Streaming copies.
    Stream,
}

/// What happens instead of what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultEffect {
    /// The call fails with `EIO`. Of a write nothing is written; after a sync, what was not durable
    /// may never be.
    Io,
    /// The call fails with `ENOSPC`, and nothing is changed.
    NoSpace,
    /// The call fails with `EROFS`, and nothing is changed: what a file system says that an error
    /// has made read-only. After a sync, what was not durable may never be.
    ReadOnly,
    /// The call fails with this number, and nothing is changed.
    Errno(i32),
    /// The call succeeds and does nothing: a dropped write, a sync that a disk did not pass on, a
    /// flush or a fence that the program forgot. A dropped stream still copies, but has to be
    /// flushed to be durable. Reads fail with `EIO` instead.
    Drop,
    /// The system takes a part of a write, so many eighths of its bytes, and is called again for
    /// the rest, as a real medium does. Of the operations that are no writes nothing is done
    /// before the second call.
    Short {
        /// How much the first call takes: 0 to 8.
        eighths: u8,
        /// What becomes of the second.
        then: Rest,
    },
}

/// What becomes of the rest of a short write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rest {
    /// It is written too. A crash may come between the two.
    Written,
    /// `ENOSPC`.
    NoSpace,
    /// `EIO`.
    Io,
}

/// One planted fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which calls.
    pub point: FaultPoint,
    /// Only calls about files whose names contain this; empty: all. Not looked at for flush, fence
    /// and stream.
    pub name: String,
    /// So many of these calls go through first.
    pub skip: u64,
    /// What happens then.
    pub effect: FaultEffect,
    /// Whether it happens to all later ones too.
    pub repeats: bool,
}

impl Fault {
    /// A fault that hits call number `skip` (from 0) of this kind, once, in any file.
    #[must_use]
    pub fn once(point: FaultPoint, skip: u64, effect: FaultEffect) -> Self {
        Self { point, name: String::new(), skip, effect, repeats: false }
    }

    /// The same about files whose names contain `name`.
    #[must_use]
    pub fn on(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The same, also for every later call.
    #[must_use]
    pub fn repeating(mut self) -> Self {
        self.repeats = true;
        self
    }
}

/// The faults that are planted, and how many calls they hit.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    planted: Vec<Fault>,
    pub(crate) hits: u64,
}

impl Faults {
    pub(crate) fn plant(&mut self, fault: Fault) {
        self.planted.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.planted.clear();
    }

    /// What happens to a call, if anything other than what was asked for.
    pub(crate) fn hit(&mut self, point: FaultPoint, name: &str) -> Option<FaultEffect> {
        let mut effect = None;
        self.planted.retain_mut(|fault| {
            let any = fault.point == FaultPoint::AnyOperation
                && matches!(point, FaultPoint::Operation(_));
            if !(any || fault.point == point) || !name.contains(&fault.name) {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            effect.get_or_insert(fault.effect);
            fault.repeats
        });
        self.hits += u64::from(effect.is_some());
        effect
    }
}
