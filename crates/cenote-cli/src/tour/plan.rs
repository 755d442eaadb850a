//! When to kill: random moments from a seed.
//!
//! Most kills are set to a place in the text: the tour kills the builder a random time after it has
//! acknowledged that word. The others are set to a time after the builder's start, to hit it while
//! it opens the store. Places are spread over the whole text, so that the work does not end long
//! before the kills do. A builder goes on until the signal reaches it: the plan measures how far,
//! and sets places that much earlier. On a busy machine the signal may come late: a builder that is
//! to be killed waits for it at a *hold* before the text ends, so every kill happens.

use std::time::Duration;

/// A small generator of random numbers (SplitMix64), so that a seed gives the same plan everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// A time below `limit`.
    pub(crate) fn time(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// When one builder is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// So long after it has acknowledged that so many words are indexed.
    AfterWord(u64, Duration),
    /// So long after its start.
    AfterStart(Duration),
}

/// The kills that are left.
#[derive(Debug)]
pub(crate) struct KillPlan {
    random: Random,
    words: u64,
    left: u32,
    /// How long a builder takes from its start to its first word.
    start: Duration,
    /// Words that a builder goes on with before the signal reaches it.
    overshoot: u64,
}

/// Longest time between an acknowledgement and the kill: several transactions.
const DELAY_MAX: Duration = Duration::from_micros(100);
/// Words that a builder may index beyond the place of its kill before it waits for the signal.
const AHEAD_WORDS_MAX: u64 = 256;

impl KillPlan {
    pub(crate) fn new(seed: u64, words: u64, kills: u32) -> Self {
        Self {
            random: Random::new(seed),
            words,
            left: kills,
            start: Duration::from_millis(2),
            overshoot: 0,
        }
    }

    /// Kills that are left.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Learns how long a builder takes to begin.
    pub(crate) fn started_after(&mut self, time: Duration) {
        self.start = (self.start * 3 + time) / 4;
    }

    /// Learns how far a builder came that was to be killed at a word.
    pub(crate) fn came_to(&mut self, planned: u64, last: u64) {
        self.overshoot = (self.overshoot * 3 + last.saturating_sub(planned)) / 4;
    }

    /// How the builder that goes on after `next` words ends; `None`: it is left alone.
    pub(crate) fn next(&mut self, next: u64) -> Option<Kill> {
        if self.left == 0 {
            return None;
        }
        let rest = self.words.saturating_sub(next);
        // On average the share of one kill, so that the last ones come near the end.
        let share = (rest / u64::from(self.left)).saturating_sub(self.overshoot);
        let delay = self.random.time(DELAY_MAX);
        if share == 0 || self.random.below(4) == 0 {
            // While it starts, or is at its first words.
            return Some(Kill::AfterStart(self.random.time(self.start)));
        }
        let place = next + self.random.below(2 * share);
        Some(Kill::AfterWord(place.min(self.words.saturating_sub(1)), delay))
    }

    /// Where the builder that goes on after `next` words waits for its kill. It is never the end of
    /// the text.
    pub(crate) fn hold(&self, kill: Kill, next: u64) -> u64 {
        let place = match kill {
            Kill::AfterWord(word, _) => word,
            Kill::AfterStart(_) => next,
        };
        let ahead = (self.words / 100).clamp(1, AHEAD_WORDS_MAX);
        (place + ahead).min(self.words.saturating_sub(1))
    }

    /// The kill was carried out.
    pub(crate) fn done(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Whether something that has a one in `n` chance happens.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    /// A random time below `limit`.
    pub(crate) fn time(&mut self, limit: Duration) -> Duration {
        self.random.time(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan() {
        let plan = |seed| {
            let mut plan = KillPlan::new(seed, 10_000, 20);
            (0..20).map(|i| plan.next(i * 400)).collect::<Vec<_>>()
        };
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn kills_are_spread_over_the_text_and_none_is_set_beyond_its_end() {
        for seed in 0..100 {
            let mut plan = KillPlan::new(seed, 10_000, 50);
            let (mut next, mut kills) = (0, 0);
            while let Some(kill) = plan.next(next) {
                // It is past the place, and before the end: a late signal still comes in time.
                let hold = plan.hold(kill, next);
                assert!(next <= hold && hold < 10_000);
                if let Kill::AfterWord(word, _) = kill {
                    assert!((next..10_000).contains(&word) && word <= hold);
                    next = word;
                }
                plan.done();
                kills += 1;
            }
            assert_eq!(kills, 50);
            assert!(next > 5_000, "seed {seed}: the last kill was at word {next}");
        }
    }

    #[test]
    fn a_text_of_one_word_can_be_planned_for() {
        let mut plan = KillPlan::new(3, 1, 5);
        for next in [0, 1] {
            assert!(matches!(plan.next(next), Some(Kill::AfterStart(_) | Kill::AfterWord(0, _))));
        }
    }
}
