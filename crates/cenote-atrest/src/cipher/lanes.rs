//! Four AES blocks side by side: what AEGIS-256X4 is made of.
//!
//! # Safety argument
//!
//! The methods are `unsafe` because those of [`Wide`] and [`AesNi`] are instructions that not every processor has: they are
//! called only inside functions that enable the features, which are called only after
//! [`Engine::is_available`](super::Engine::is_available) said yes. They are always inlined there, so that no vector is
//! passed between functions. Loads and stores go through references to 64 bytes.

use aes::Block;

/// Four AES blocks.
pub(super) trait Lanes: Copy {
    /// # Safety
    /// The processor has the engine's instructions.
    unsafe fn load(from: &[u8; 64]) -> Self;
    /// The same block four times.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn broadcast(block: &[u8; 16]) -> Self;
    /// # Safety
    /// As for `load`.
    unsafe fn store(self, to: &mut [u8; 64]);
    /// # Safety
    /// As for `load`.
    unsafe fn xor(self, other: Self) -> Self;
    /// # Safety
    /// As for `load`.
    unsafe fn and(self, other: Self) -> Self;
    /// The cipher's step: six rounds of AES, each of one row with the one before it, and the message into the first: last,
    /// because when decrypting it is known late.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn update(rows: &mut [Self; 6], message: Self);
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{AesNi, Wide};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use core::arch::x86_64::{
        __m128i, __m512i, _mm_aesenc_si128, _mm_and_si128, _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128,
        _mm512_aesenc_epi128, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_loadu_si512,
        _mm512_storeu_si512, _mm512_xor_si512,
    };

    /// One register of 512 bits.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Wide(__m512i);

    impl Lanes for Wide {
        #[inline(always)]
        unsafe fn load(from: &[u8; 64]) -> Self {
            // SAFETY: 64 readable bytes; no alignment is asked for; instructions: see the module.
            Self(unsafe { _mm512_loadu_si512(from.as_ptr().cast()) })
        }

        #[inline(always)]
        unsafe fn broadcast(block: &[u8; 16]) -> Self {
            // SAFETY: 16 readable bytes; no alignment is asked for; instructions: see the module.
            Self(unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast())) })
        }

        #[inline(always)]
        unsafe fn store(self, to: &mut [u8; 64]) {
            // SAFETY: 64 writable bytes; no alignment is asked for; instructions: see the module.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), self.0) };
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: instructions: see the module.
            Self(unsafe { _mm512_xor_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn and(self, other: Self) -> Self {
            // SAFETY: instructions: see the module.
            Self(unsafe { _mm512_and_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn update(rows: &mut [Self; 6], message: Self) {
            let [a, b, c, d, e, f] = *rows;
            // SAFETY: instructions: see the module.
            unsafe {
                *rows = [
                    Self(_mm512_xor_si512(_mm512_aesenc_epi128(f.0, a.0), message.0)),
                    Self(_mm512_aesenc_epi128(a.0, b.0)),
                    Self(_mm512_aesenc_epi128(b.0, c.0)),
                    Self(_mm512_aesenc_epi128(c.0, d.0)),
                    Self(_mm512_aesenc_epi128(d.0, e.0)),
                    Self(_mm512_aesenc_epi128(e.0, f.0)),
                ];
            }
        }
    }

    /// Four registers of 128 bits.
    #[derive(Clone, Copy)]
    pub(in super::super) struct AesNi([__m128i; 4]);

    impl Lanes for AesNi {
        #[inline(always)]
        unsafe fn load(from: &[u8; 64]) -> Self {
            let at = from.as_ptr().cast::<__m128i>();
            // SAFETY: four times 16 readable bytes; no alignment is asked for.
            Self(core::array::from_fn(|i| unsafe { _mm_loadu_si128(at.add(i)) }))
        }

        #[inline(always)]
        unsafe fn broadcast(block: &[u8; 16]) -> Self {
            // SAFETY: 16 readable bytes; no alignment is asked for; every x86-64 has the instruction.
            Self([unsafe { _mm_loadu_si128(block.as_ptr().cast()) }; 4])
        }

        #[inline(always)]
        unsafe fn store(self, to: &mut [u8; 64]) {
            let at = to.as_mut_ptr().cast::<__m128i>();
            for (i, lane) in self.0.into_iter().enumerate() {
                // SAFETY: four times 16 writable bytes; no alignment is asked for.
                unsafe { _mm_storeu_si128(at.add(i), lane) };
            }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(core::array::from_fn(|i| unsafe { _mm_xor_si128(self.0[i], other.0[i]) }))
        }

        #[inline(always)]
        unsafe fn and(self, other: Self) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(core::array::from_fn(|i| unsafe { _mm_and_si128(self.0[i], other.0[i]) }))
        }

        #[inline(always)]
        unsafe fn update(rows: &mut [Self; 6], message: Self) {
            for i in 0..4 {
                let lane = rows.map(|row| row.0[i]);
                // SAFETY: instructions: see the module.
                unsafe {
                    rows[0].0[i] = _mm_xor_si128(_mm_aesenc_si128(lane[5], lane[0]), message.0[i]);
                    rows[1].0[i] = _mm_aesenc_si128(lane[0], lane[1]);
                    rows[2].0[i] = _mm_aesenc_si128(lane[1], lane[2]);
                    rows[3].0[i] = _mm_aesenc_si128(lane[2], lane[3]);
                    rows[4].0[i] = _mm_aesenc_si128(lane[3], lane[4]);
                    rows[5].0[i] = _mm_aesenc_si128(lane[4], lane[5]);
                }
            }
        }
    }
}

/// Plain bytes, and rounds of crate `aes`.
#[derive(Clone, Copy)]
pub(super) struct Portable([[u8; 16]; 4]);

impl Portable {
    fn each(self, other: Self, f: impl Fn(u8, u8) -> u8) -> Self {
        Self(core::array::from_fn(|i| core::array::from_fn(|j| f(self.0[i][j], other.0[i][j]))))
    }
}

impl Lanes for Portable {
    unsafe fn load(from: &[u8; 64]) -> Self {
        Self(core::array::from_fn(|i| core::array::from_fn(|j| from[16 * i + j])))
    }

    unsafe fn broadcast(block: &[u8; 16]) -> Self {
        Self([*block; 4])
    }

    unsafe fn store(self, to: &mut [u8; 64]) {
        for (to, from) in to.chunks_exact_mut(16).zip(self.0) {
            to.copy_from_slice(&from);
        }
    }

    unsafe fn xor(self, other: Self) -> Self {
        self.each(other, |a, b| a ^ b)
    }

    unsafe fn and(self, other: Self) -> Self {
        self.each(other, |a, b| a & b)
    }

    unsafe fn update(rows: &mut [Self; 6], message: Self) {
        let old = *rows;
        // 24 rounds, eight at a time: two rows each.
        for pair in 0..3 {
            let mut blocks = aes::hazmat::Block8::default();
            let mut keys = aes::hazmat::Block8::default();
            for i in 0..8 {
                let (row, lane) = (2 * pair + i / 4, i % 4);
                blocks[i] = Block::from(old[(row + 5) % 6].0[lane]);
                keys[i] = Block::from(old[row].0[lane]);
            }
            aes::hazmat::cipher_round_par(&mut blocks, &keys);
            for i in 0..8 {
                let (row, lane) = (2 * pair + i / 4, i % 4);
                rows[row].0[lane].copy_from_slice(&blocks[i]);
            }
        }
        rows[0] = rows[0].each(message, |a, b| a ^ b);
    }
}
