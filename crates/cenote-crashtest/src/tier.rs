//! Which part of a large enumeration one change visits.
//!
//! | run | visits |
//! | --- | --- |
//! | each change | the part that the id of its commit chooses: other changes visit the others |
//! | `CENOTE_CRASH_DEPTH` is set | everything |
//!
//! Invariant: the parts of an enumeration together are all of it.

use std::process::Command;
use std::sync::OnceLock;

/// Parts into which the recoveries that a test crashes are divided.
const PARTS: u64 = 16;

/// The number that chooses the parts of this change: the environment's `variable`, or the commit.
#[must_use]
pub fn number_of_change(variable: &str) -> u64 {
    if let Ok(number) = std::env::var(variable) {
        return number.parse().expect("a number");
    }
    let ran = Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).output();
    let id = ran.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned());
    u64::from_str_radix(id.unwrap_or_default().trim(), 16).unwrap_or(1)
}

/// Which images have their recovery crashed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// One image in so many; 0: none.
    every: u64,
    /// Of those, one part.
    part: Option<u64>,
}

impl Sampled {
    /// One image in `every`: the same ones in each run.
    #[must_use]
    pub fn all(every: u64) -> Self {
        Self { every, part: None }
    }

    /// One image in `every`, and of those the part of this change. `CENOTE_CRASH_PART` repeats the
    /// run of another change.
    #[must_use]
    pub fn of_change(every: u64) -> Self {
        static PART: OnceLock<Option<u64>> = OnceLock::new();
        let part = *PART.get_or_init(|| {
            let all = std::env::var_os("CENOTE_CRASH_DEPTH").is_some();
            let part = (!all).then(|| number_of_change("CENOTE_CRASH_PART") % PARTS);
            if let Some(part) = part {
                println!("CENOTE_CRASH_PART={part} repeats this run");
            }
            part
        });
        Self { every, part }
    }

    /// Whether the image of this hash is one of them.
    #[must_use]
    pub fn takes(self, hash: u64) -> bool {
        self.every != 0
            && hash.is_multiple_of(self.every)
            && self.part.is_none_or(|part| hash / self.every % PARTS == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_changes_are_everything() {
        let parts = (0..PARTS).map(|part| Sampled { every: 16, part: Some(part) });
        for hash in 0..10_000 {
            let times = parts.clone().filter(|part| part.takes(hash)).count();
            assert_eq!(times == 1, Sampled::all(16).takes(hash), "{hash}");
            assert!(times <= 1 && !Sampled::all(0).takes(hash));
        }
    }
}
