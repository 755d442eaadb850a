//! A seeded source of numbers (SplitMix64): the same seed gives the same history on every machine.
//!
//! Nothing here is secret or needs to be: boot ids, clocks, identifiers and samples of a simulation
//! come from it, so that a failure is named by its seed.

/// SplitMix64: one addition and a finaliser per number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. The bias of the multiplication does not matter for
    /// samples.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        ((self.next() as u128 * bound as u128) >> 64) as usize
    }

    pub(crate) const fn bytes16(&mut self) -> [u8; 16] {
        let wide = (self.next() as u128) << 64 | self.next() as u128;
        wide.to_le_bytes()
    }
}

/// Spreads every bit of `value` over all bits of the result.
pub(crate) const fn mix(value: u64) -> u64 {
    let a = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_sequence() {
        let (mut a, mut b, mut c) = (Random::new(7), Random::new(7), Random::new(8));
        let first: Vec<u64> = (0..10).map(|_| a.next()).collect();
        assert_eq!(first, (0..10).map(|_| b.next()).collect::<Vec<_>>());
        assert_ne!(first, (0..10).map(|_| c.next()).collect::<Vec<_>>());
        assert!((0..1000).all(|_| a.below(3) < 3));
    }
}
