//! A byte string read as a sequence of decisions; at its end every decision is 0, so that every
//! string is a valid program.

/// See the module.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Reads `data` from its start.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&first, rest)) => {
                self.rest = rest;
                first
            }
            None => 0,
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.byte())
    }

    /// The next eight bytes as a number.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `n`, which is at least 1 and at most 2^16.
    pub fn below(&mut self, n: usize) -> usize {
        let value = if n <= 256 {
            usize::from(self.byte())
        } else {
            usize::from(u16::from_le_bytes(self.array()))
        };
        value % n.max(1)
    }

    /// True about once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// A number as programs get wrong: small, large, near a power of two, or `near` something that
    /// means something here.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            2 => (1u64 << self.below(64)).wrapping_add(self.byte() as i8 as u64),
            3 | 4 => near.wrapping_add(self.byte() as i8 as u64),
            _ => self.word(),
        }
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// Damages `bytes` somewhere, as media do ([`Input::spoil`]) or by a piece that stands where
    /// another belongs. Nothing if there are none.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        if !self.one_in(4) {
            return self.spoil(bytes);
        }
        let at = self.below(bytes.len().min(1 << 16));
        let len = (1 + self.below(64)).min(bytes.len() - at);
        let from = self.below((bytes.len() - len + 1).min(1 << 16));
        bytes.copy_within(from..from + len, at);
    }

    /// Spoils a bit, a byte, a word or a piece of `bytes`. Nothing if there are none.
    pub fn spoil(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let at = self.below(bytes.len().min(1 << 16));
        match self.below(5) {
            0 | 1 => bytes[at] ^= 1 << self.below(8),
            2 => bytes[at] = self.byte(),
            3 => {
                let start = at / 8 * 8;
                let word = self.word().to_le_bytes();
                let len = (bytes.len() - start).min(8);
                bytes[start..start + len].copy_from_slice(&word[..len]);
            }
            _ => {
                let len = (1 + self.below(64)).min(bytes.len() - at);
                bytes[at..at + len].fill(0);
            }
        }
    }
}

/// Numbers that a seed repeats (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Up to `len` bytes: short strings as often as long ones.
    #[must_use]
    pub fn bytes(mut self, len: usize) -> Vec<u8> {
        let len = (self.next_word() % (len as u64 + 1)) as usize;
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next_word().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}
