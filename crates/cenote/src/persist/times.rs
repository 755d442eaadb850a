//! [`Duration`] and [`SystemTime`]: 16 bytes each.
//!
//! ```text
//! seconds (8) | nanoseconds below 1,000,000,000 (4) | unused (4)
//! ```
//!
//! Seconds of a `SystemTime` count from 1970 on, in UTC, and have a sign; its nanoseconds count
//! forward from there. The standard library hides these fields, so constants ask the compiler where
//! they lie. A library that has them elsewhere does not compile. That a `SystemTime` counts seconds
//! from 1970 is no constant; a test compares it.

use super::options::bytes_at;
use super::{LayoutBuilder, NoneForm, Persist, TypeId};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOS_AT: usize = 8;
/// As nanoseconds: `None`.
const NONE_NANOS: u64 = 1_000_000_000;

/// The layout of a `Duration`.
const _: () = {
    assert!(size_of::<Duration>() == 16 && align_of::<Duration>() == 8);
    let (seconds, nanos) = (0x1122_3344_5566_7788, 0x1a2b_3c4d);
    let value = Duration::new(seconds, nanos);
    // SAFETY: inside of the values, in a constant.
    unsafe {
        assert!(bytes_at(&value, 0, 8) == seconds);
        assert!(bytes_at(&value, NANOS_AT, 4) == nanos as u64);
        assert!(bytes_at(&Duration::MAX, NANOS_AT, 4) == NONE_NANOS - 1);
        assert!(bytes_at(&None::<Duration>, NANOS_AT, 4) == NONE_NANOS);
        assert!(bytes_at(&Some(value), 0, 8) == seconds);
        assert!(bytes_at(&Some(value), NANOS_AT, 4) == nanos as u64);
    }
};

/// The layout of a `SystemTime`: its first 12 bytes have values, of which 4 are the nanoseconds.
const _: () = {
    assert!(size_of::<SystemTime>() == 16 && align_of::<SystemTime>() == 8);
    // SAFETY: as above.
    unsafe {
        assert!(bytes_at(&UNIX_EPOCH, 0, 8) == 0 && bytes_at(&UNIX_EPOCH, NANOS_AT, 4) == 0);
        assert!(bytes_at(&None::<SystemTime>, NANOS_AT, 4) == NONE_NANOS);
        assert!(bytes_at(&Some(UNIX_EPOCH), 0, 8) == 0);
        assert!(bytes_at(&Some(UNIX_EPOCH), NANOS_AT, 4) == 0);
    }
};

macro_rules! times {
    ($($type:ident),*) => {$(
        // SAFETY: two numbers, without pointers. The compiler has confirmed where they lie, and
        // which nanoseconds are none.
        unsafe impl Persist for $type {
            const TYPE_ID: TypeId = TypeId::of_name(stringify!($type));
            const BUILT_IN: bool = true;
            const NONE: NoneForm = NoneForm::Niche;

            fn type_name() -> String {
                stringify!($type).to_string()
            }

            fn describe(_: &mut LayoutBuilder) {}
        }
    )*};
}

times!(Duration, SystemTime);
