//! AES-256-XTS with vectors of 512 bits: 32 blocks are in work at a time, so that the rounds' latency is hidden.
//!
//! Four tweaks fill a vector. The tweaks of the next 32 blocks are those of the last times a^32, which is a shift by four
//! bytes whose overflow comes back multiplied by the field's polynomial (0x87), without carries.
//!
//! # Safety argument
//!
//! Every function needs AVX-512F, AVX-512BW, VAES, VPCLMULQDQ, AES and SSE4.1, which [`Engine::Wide`](super::Engine)
//! being available means; that is the callers' to show. Loads and stores go to addresses computed from slices, at offsets
//! below their lengths.

use super::xts::double;
use core::arch::x86_64::{
    __m128i, __m512i, _mm_aesdec_si128, _mm_aesdeclast_si128, _mm_aesenc_si128, _mm_aesenclast_si128,
    _mm_aesimc_si128, _mm_aeskeygenassist_si128, _mm_loadu_si128, _mm_shuffle_epi32, _mm_slli_si128,
    _mm_storeu_si128, _mm_xor_si128, _mm512_aesdec_epi128, _mm512_aesdeclast_epi128, _mm512_aesenc_epi128,
    _mm512_aesenclast_epi128, _mm512_broadcast_i32x4, _mm512_bslli_epi128, _mm512_bsrli_epi128,
    _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_storeu_si512, _mm512_xor_si512,
};

/// Round keys of AES-256.
const ROUNDS: usize = 15;
/// Vectors in work at a time, and the bytes in them.
const VECTORS: usize = 8;
const BATCH: usize = VECTORS * 64;

/// Round keys: of the data's key for either direction, and of the tweak's key.
pub(super) struct Rounds {
    encrypt: [[u8; 16]; ROUNDS],
    decrypt: [[u8; 16]; ROUNDS],
    tweak: [[u8; 16]; ROUNDS],
}

impl Default for Rounds {
    fn default() -> Self {
        Self { encrypt: [[0; 16]; ROUNDS], decrypt: [[0; 16]; ROUNDS], tweak: [[0; 16]; ROUNDS] }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        for key in [&mut self.encrypt, &mut self.decrypt, &mut self.tweak] {
            cenote_sys::secret::wipe_bytes(key.as_flattened_mut());
        }
    }
}

impl Rounds {
    /// # Safety
    /// The processor has the features of the module.
    #[target_feature(enable = "aes,sse4.1")]
    pub(super) unsafe fn expand(&mut self, data: &[u8; 32], tweak: &[u8; 32]) {
        expand(data, &mut self.encrypt);
        expand(tweak, &mut self.tweak);
        // The equivalent inverse cipher: the same keys backwards, the inner ones through InvMixColumns.
        for i in 0..ROUNDS {
            let key = load(&self.encrypt[ROUNDS - 1 - i]);
            store(&mut self.decrypt[i], if i == 0 || i == ROUNDS - 1 { key } else { _mm_aesimc_si128(key) });
        }
    }

    /// Encrypts or decrypts whole blocks of `from`, or of `data` itself, into `data`.
    ///
    /// # Safety
    /// The processor has the features of the module.
    #[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,sse4.1")]
    pub(super) unsafe fn run<const ENCRYPT: bool>(
        &self,
        tweak: &[u8; 16],
        from: Option<&[u8]>,
        data: &mut [u8],
    ) {
        let len = data.len().min(from.map_or(usize::MAX, <[u8]>::len));
        let to = data.as_mut_ptr();
        let from = from.map_or(to.cast_const(), <[u8]>::as_ptr);
        let mut t = [0; 16];
        store(&mut t, one_block::<true>(&self.tweak, load(tweak)));
        let mut next = u128::from_le_bytes(t);
        let keys = if ENCRYPT { &self.encrypt } else { &self.decrypt };

        let whole = len / BATCH * BATCH;
        // SAFETY: offsets are below `len`, which both have; they are the same or, being slices, do not overlap.
        unsafe {
            if whole > 0 {
                let wide: [__m512i; ROUNDS] =
                    core::array::from_fn(|i| _mm512_broadcast_i32x4(load(&keys[i])));
                let mut tweaks = first_tweaks(next);
                for at in (0..whole).step_by(BATCH) {
                    wide_batch::<ENCRYPT>(&wide, &tweaks, from.add(at), to.add(at));
                    for t in &mut tweaks {
                        *t = times::<4, 12>(*t);
                    }
                }
                let mut bytes = [0u8; 64];
                _mm512_storeu_si512(bytes.as_mut_ptr().cast(), tweaks[0]);
                t.copy_from_slice(&bytes[..16]);
                next = u128::from_le_bytes(t);
            }
            for at in (whole..len / 16 * 16).step_by(16) {
                let t = load(&next.to_le_bytes());
                let input = load(&*from.add(at).cast::<[u8; 16]>());
                let out = one_block::<ENCRYPT>(keys, _mm_xor_si128(input, t));
                store(&mut *to.add(at).cast::<[u8; 16]>(), _mm_xor_si128(out, t));
                next = double(next);
            }
        }
    }
}

/// 32 blocks at once.
///
/// # Safety
/// The processor has the features of the module; `BATCH` bytes can be read at `from` and written at `to`, which are the same
/// or do not overlap.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vaes,vpclmulqdq,aes,sse4.1")]
unsafe fn wide_batch<const ENCRYPT: bool>(
    keys: &[__m512i; ROUNDS],
    tweaks: &[__m512i; VECTORS],
    from: *const u8,
    to: *mut u8,
) {
    // SAFETY: offsets are below BATCH.
    unsafe {
        let mut work: [__m512i; VECTORS] = core::array::from_fn(|i| {
            let input = _mm512_loadu_si512(from.add(64 * i).cast());
            _mm512_xor_si512(_mm512_xor_si512(input, tweaks[i]), keys[0])
        });
        for key in &keys[1..ROUNDS - 1] {
            for w in &mut work {
                *w = if ENCRYPT { _mm512_aesenc_epi128(*w, *key) } else { _mm512_aesdec_epi128(*w, *key) };
            }
        }
        for (i, w) in work.into_iter().enumerate() {
            let last = keys[ROUNDS - 1];
            let out =
                if ENCRYPT { _mm512_aesenclast_epi128(w, last) } else { _mm512_aesdeclast_epi128(w, last) };
            _mm512_storeu_si512(to.add(64 * i).cast(), _mm512_xor_si512(out, tweaks[i]));
        }
    }
}

/// The tweaks of the first 32 blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn first_tweaks(first: u128) -> [__m512i; VECTORS] {
    let mut bytes = [0u8; 128];
    let mut t = first;
    for block in bytes.chunks_exact_mut(16) {
        block.copy_from_slice(&t.to_le_bytes());
        t = double(t);
    }
    // SAFETY: two times 64 readable bytes.
    let (t0, t1) = unsafe {
        (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(bytes.as_ptr().add(64).cast()))
    };
    // Two vectors on: times a^8, a byte; four on: times a^16, two bytes.
    let (t2, t3) = (times::<1, 15>(t0), times::<1, 15>(t1));
    [t0, t1, t2, t3, times::<2, 14>(t0), times::<2, 14>(t1), times::<2, 14>(t2), times::<2, 14>(t3)]
}

/// Times a^(8 x BYTES), for each of four tweaks; `REST` is 16 less `BYTES`, which is at most 7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times<const BYTES: i32, const REST: i32>(t: __m512i) -> __m512i {
    let overflow = _mm512_bsrli_epi128::<REST>(t);
    let back = _mm512_clmulepi64_epi128::<0>(overflow, _mm512_set1_epi64(0x87));
    _mm512_xor_si512(_mm512_bslli_epi128::<BYTES>(t), back)
}

#[inline]
#[target_feature(enable = "aes,sse4.1")]
fn one_block<const ENCRYPT: bool>(keys: &[[u8; 16]; ROUNDS], block: __m128i) -> __m128i {
    let mut b = _mm_xor_si128(block, load(&keys[0]));
    for key in &keys[1..ROUNDS - 1] {
        b = if ENCRYPT { _mm_aesenc_si128(b, load(key)) } else { _mm_aesdec_si128(b, load(key)) };
    }
    let last = load(&keys[ROUNDS - 1]);
    if ENCRYPT { _mm_aesenclast_si128(b, last) } else { _mm_aesdeclast_si128(b, last) }
}

/// FIPS 197's key expansion for 256 bits: each pair of round keys from the pair before it.
#[target_feature(enable = "aes,sse4.1")]
fn expand(key: &[u8; 32], rounds: &mut [[u8; 16]; ROUNDS]) {
    let (halves, _) = key.as_chunks::<16>();
    let (mut even, mut odd) = (load(&halves[0]), load(&halves[1]));
    store(&mut rounds[0], even);
    store(&mut rounds[1], odd);
    // The constant is part of the instruction.
    macro_rules! next_even {
        ($at:literal, $constant:literal) => {
            let word = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<$constant>(odd));
            even = _mm_xor_si128(spread(even), word);
            store(&mut rounds[$at], even);
        };
    }
    macro_rules! next_odd {
        ($at:literal) => {
            let word = _mm_shuffle_epi32::<0xaa>(_mm_aeskeygenassist_si128::<0>(even));
            odd = _mm_xor_si128(spread(odd), word);
            store(&mut rounds[$at], odd);
        };
    }
    next_even!(2, 0x01);
    next_odd!(3);
    next_even!(4, 0x02);
    next_odd!(5);
    next_even!(6, 0x04);
    next_odd!(7);
    next_even!(8, 0x08);
    next_odd!(9);
    next_even!(10, 0x10);
    next_odd!(11);
    next_even!(12, 0x20);
    next_odd!(13);
    next_even!(14, 0x40);
}

/// Each word with all words before it mixed in.
#[inline]
#[target_feature(enable = "aes,sse4.1")]
fn spread(key: __m128i) -> __m128i {
    let mut sum = key;
    let mut shifted = key;
    for _ in 0..3 {
        shifted = _mm_slli_si128::<4>(shifted);
        sum = _mm_xor_si128(sum, shifted);
    }
    sum
}

#[inline(always)]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; every x86-64 has the instruction.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline(always)]
fn store(bytes: &mut [u8; 16], value: __m128i) {
    // SAFETY: 16 writable bytes; every x86-64 has the instruction.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), value) };
}
