//! Numbers that the environment sets, and how much of its work a long test does.

/// The number in a variable, or `default` if it is not set.
///
/// # Panics
/// The variable holds no number.
#[must_use]
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text:?}"))
    })
}

/// One part in so many is what a long test does in the quick loop.
const QUICK_PART: u64 = 8;

/// Rounds of a long test: `all` of them, or an eighth in the quick loop (`scripts/quick.sh` sets
/// `CENOTE_QUICK`), at least one.
#[must_use]
pub fn rounds(all: u64) -> u64 {
    if is_quick() { (all / QUICK_PART).max(1) } else { all }
}

/// Cases of a long test from one that is tried to the next: `every`, or eight times as many in the
/// quick loop.
#[must_use]
pub fn stride(every: u64) -> u64 {
    if is_quick() { every * QUICK_PART } else { every }
}

fn is_quick() -> bool {
    std::env::var_os("CENOTE_QUICK").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rounds_are_done_unless_the_quick_loop_asks_for_fewer() {
        let (some, few, next) = match is_quick() {
            true => (62, 1, 24),
            false => (500, 3, 3),
        };
        assert_eq!((rounds(500), rounds(3), stride(3)), (some, few, next));
    }
}
