//! Numbers from a seed. A failure prints the seed, and the same seed gives the same numbers.

/// A number that `seed` decides: the next one of SplitMix64 after it.
#[must_use]
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number of 47 bits from a seed that changes.
#[must_use]
pub const fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let x = *seed ^ (*seed >> 33);
    x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 17
}
