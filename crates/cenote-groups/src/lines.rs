//! The table of lines that groups have dirtied: sets and ways, as a cache has them.
//!
//! Invariant: a line is in the table at most once, in the set that its number chooses.

/// Which line of a full set leaves a modelled cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The one that was stored to least recently.
    LeastRecent,
    /// The one that came first.
    First,
    /// Any, by this seed.
    Random(u64),
}

/// A cache, as far as dirty lines are concerned: of a full set one leaves for each that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheModel {
    /// Sets; counts as the next power of two.
    pub sets: usize,
    /// Lines of a set, at least 1.
    pub ways: usize,
    /// Which of them leaves.
    pub replacement: Replacement,
}

/// A line that a group counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirtyLine {
    /// Its address by 64; 0: the place is free.
    pub(crate) number: u64,
    /// The counter of its group.
    pub(crate) counter: u32,
    /// When it came, or was stored to last.
    pub(crate) stamp: u64,
}

/// What became of a line that was stored to.
pub(crate) enum Entered {
    /// It counts for the group.
    Counted,
    /// A group counts it already.
    Known,
    /// The set is full.
    Full,
}

/// Dirty lines.
pub(crate) struct LineTable {
    places: Vec<DirtyLine>,
    sets: usize,
    ways: usize,
    replacement: Replacement,
    clock: u64,
    random: u64,
}

impl LineTable {
    pub(crate) fn new(model: CacheModel) -> Self {
        let (sets, ways) = (model.sets.max(1).next_power_of_two(), model.ways.max(1));
        let random = match model.replacement {
            Replacement::Random(seed) => seed | 1,
            _ => 1,
        };
        let places = vec![DirtyLine::default(); sets * ways];
        Self { places, sets, ways, replacement: model.replacement, clock: 0, random }
    }

    fn set(&mut self, number: u64) -> &mut [DirtyLine] {
        // Neighbours lie in neighbouring sets; what is far away is spread by the product.
        let spread = (number >> 16).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let first = ((number ^ spread) as usize & (self.sets - 1)) * self.ways;
        &mut self.places[first..first + self.ways]
    }

    /// Notes a store to a line, by a group with this counter.
    pub(crate) fn enter(&mut self, number: u64, counter: u32) -> Entered {
        self.clock += 1;
        let (stamp, recent) = (self.clock, self.replacement == Replacement::LeastRecent);
        let mut free = None;
        for place in self.set(number) {
            if place.number == number {
                if recent {
                    place.stamp = stamp;
                }
                return Entered::Known;
            }
            if place.number == 0 {
                free.get_or_insert(place);
            }
        }
        match free {
            None => Entered::Full,
            Some(place) => {
                *place = DirtyLine { number, counter, stamp };
                Entered::Counted
            }
        }
    }

    /// Takes the line that leaves the full set of another one.
    pub(crate) fn victim(&mut self, number: u64) -> DirtyLine {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (random, replacement) = (self.random as usize, self.replacement);
        let set = self.set(number);
        let oldest = || set.iter().enumerate().min_by_key(|(_, line)| line.stamp);
        let at = match replacement {
            Replacement::Random(_) => random % set.len(),
            _ => oldest().map_or(0, |(at, _)| at),
        };
        core::mem::take(&mut set[at])
    }

    /// The counter of a line, if it is there.
    pub(crate) fn counter_of(&mut self, number: u64) -> Option<u32> {
        self.set(number).iter().find(|place| place.number == number).map(|place| place.counter)
    }

    /// Takes a line out.
    pub(crate) fn remove(&mut self, number: u64) -> Option<DirtyLine> {
        let place = self.set(number).iter_mut().find(|place| place.number == number)?;
        Some(core::mem::take(place))
    }

    /// All lines, in the order of their places.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.places.iter().map(|line| line.number).filter(|&number| number != 0).collect()
    }
}
