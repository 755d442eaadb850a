//! AEGIS-256X4 with tags of 256 bits, as draft-irtf-cfrg-aegis-aead-18 says.
//!
//! Six rows of four AES blocks. Each 64 bytes of message are masked with a function of the rows and then mixed into
//! them; the tag is what the rows fold to at the end. 256-bit nonces may be chosen at random; a nonce must never come twice
//! with one key.
//!
//! # Safety argument
//!
//! [`run`] calls an engine's functions only where this processor has the engine, and hands them pointers that it makes of
//! slices: a message may be read from where it is written to, or from elsewhere.

use super::Engine;
use super::lanes::{Lanes, Portable};
use subtle::ConstantTimeEq;

const C0: [u8; 16] =
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62];
const C1: [u8; 16] =
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd];

/// Bytes that one step takes.
const RATE: usize = 64;
/// What each lane mixes in at the start: its own number, and the highest one.
const CONTEXT: [u8; RATE] = {
    let mut context = [0; RATE];
    let mut lane = 0;
    while lane < 4 {
        context[16 * lane] = lane as u8;
        context[16 * lane + 1] = 3;
        lane += 1;
    }
    context
};

/// Encrypts `from`, or `data` itself, into `data`, authenticates it with `ad`, and returns the tag. `from` is as long as
/// `data`.
pub(crate) fn seal(
    engine: Engine,
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> [u8; 32] {
    run::<true>(engine, key, nonce, ad, from, data)
}

/// Decrypts `from`, or `data` itself, into `data`. False: the tag does not fit, and `data` is all zero. `from` is as long
/// as `data`.
#[must_use]
pub(crate) fn open(
    engine: Engine,
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    tag: &[u8; 32],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> bool {
    let computed = run::<false>(engine, key, nonce, ad, from, data);
    let fits: bool = computed.ct_eq(tag).into();
    if !fits {
        data.fill(0);
    }
    fits
}

/// Where a message comes from and where it goes.
///
/// # Safety of its users
/// `len` bytes can be read at `from` and written at `to`, which are the same or do not overlap, for as long as the value
/// lives: [`run`] makes it of slices that it borrows.
#[derive(Clone, Copy)]
struct Message {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

fn run<const SEAL: bool>(
    engine: Engine,
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> [u8; 32] {
    let len = data.len().min(from.map_or(usize::MAX, <[u8]>::len));
    debug_assert_eq!(len, data.len());
    let to = data.as_mut_ptr();
    let message = Message { from: from.map_or(to.cast_const(), <[u8]>::as_ptr), to, len };
    match engine {
        #[cfg(target_arch = "x86_64")]
        Engine::Wide if engine.is_available() => {
            // SAFETY: the processor has the instructions, and the message is made of slices.
            unsafe { run_wide::<SEAL>(key, nonce, ad, message) }
        }
        #[cfg(target_arch = "x86_64")]
        Engine::AesNi if engine.is_available() => {
            // SAFETY: the processor has the instructions, and the message is made of slices.
            unsafe { run_aesni::<SEAL>(key, nonce, ad, message) }
        }
        // SAFETY: needs no instruction that a processor may lack; the message is made of slices.
        _ => unsafe { body::<Portable, SEAL>(key, nonce, ad, message) },
    }
}

/// # Safety
/// The processor has the features; the message is what [`Message`] says.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,vaes,aes")]
unsafe fn run_wide<const SEAL: bool>(
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    message: Message,
) -> [u8; 32] {
    // SAFETY: the features are enabled here.
    unsafe { body::<super::lanes::Wide, SEAL>(key, nonce, ad, message) }
}

/// # Safety
/// The processor has the features; the message is what [`Message`] says.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes,sse4.1")]
unsafe fn run_aesni<const SEAL: bool>(
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    message: Message,
) -> [u8; 32] {
    // SAFETY: the features are enabled here.
    unsafe { body::<super::lanes::AesNi, SEAL>(key, nonce, ad, message) }
}

/// The whole cipher.
///
/// # Safety
/// The processor has the instructions of `L`, and the caller enables them; the message is what [`Message`] says.
#[inline(always)]
unsafe fn body<L: Lanes, const SEAL: bool>(
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    message: Message,
) -> [u8; 32] {
    let Message { from, to, len } = message;
    // SAFETY: all calls of L's methods are handed on to the caller. Pointers are moved by less than `len`, and a reference
    // to what is read ends before the same bytes are written.
    unsafe {
        let mut rows = start::<L>(key, nonce);
        let (blocks, rest) = ad.as_chunks::<RATE>();
        for block in blocks {
            L::update(&mut rows, L::load(block));
        }
        if !rest.is_empty() {
            L::update(&mut rows, L::load(&padded(rest)));
        }

        let whole = len / RATE * RATE;
        for at in (0..whole).step_by(RATE) {
            let input = L::load(&*from.add(at).cast::<[u8; RATE]>());
            let output = input.xor(mask(&rows));
            output.store(&mut *to.add(at).cast::<[u8; RATE]>());
            L::update(&mut rows, if SEAL { input } else { output });
        }
        if whole < len {
            let input = padded(core::slice::from_raw_parts(from.add(whole), len - whole));
            let mut output = [0; RATE];
            L::load(&input).xor(mask(&rows)).store(&mut output);
            to.add(whole).copy_from_nonoverlapping(output.as_ptr(), len - whole);
            output[len - whole..].fill(0);
            L::update(&mut rows, L::load(if SEAL { &input } else { &output }));
            cenote_sys::secret::wipe_bytes(&mut output);
        }

        let mut sizes = [0; 16];
        sizes[..8].copy_from_slice(&(ad.len() as u64 * 8).to_le_bytes());
        sizes[8..].copy_from_slice(&(len as u64 * 8).to_le_bytes());
        let last = rows[3].xor(L::broadcast(&sizes));
        for _ in 0..7 {
            L::update(&mut rows, last);
        }
        let (mut low, mut high) = ([0; RATE], [0; RATE]);
        rows[0].xor(rows[1]).xor(rows[2]).store(&mut low);
        rows[3].xor(rows[4]).xor(rows[5]).store(&mut high);
        let mut tag = [0; 32];
        tag[..16].copy_from_slice(&fold(&low));
        tag[16..].copy_from_slice(&fold(&high));
        tag
    }
}

/// The rows after initialisation.
///
/// # Safety
/// As for [`body`].
#[inline(always)]
unsafe fn start<L: Lanes>(key: &[u8; 32], nonce: &[u8; 32]) -> [L; 6] {
    let half = |bytes: &[u8; 32], which: usize| -> [u8; 16] {
        let mut half = [0; 16];
        half.copy_from_slice(&bytes[16 * which..16 * which + 16]);
        half
    };
    // SAFETY: all calls of L's methods are handed on to the caller.
    unsafe {
        let (k0, k1) = (L::broadcast(&half(key, 0)), L::broadcast(&half(key, 1)));
        let (n0, n1) = (L::broadcast(&half(nonce, 0)), L::broadcast(&half(nonce, 1)));
        let (c0, c1) = (L::broadcast(&C0), L::broadcast(&C1));
        let context = L::load(&CONTEXT);
        let (k0n0, k1n1) = (k0.xor(n0), k1.xor(n1));
        let mut rows = [k0n0, k1n1, c1, c0, k0.xor(c0), k1.xor(c1)];
        for _ in 0..4 {
            for message in [k0, k1, k0n0, k1n1] {
                rows[3] = rows[3].xor(context);
                rows[5] = rows[5].xor(context);
                L::update(&mut rows, message);
            }
        }
        rows
    }
}

/// What the next 64 bytes are masked with.
///
/// # Safety
/// As for [`body`].
#[inline(always)]
unsafe fn mask<L: Lanes>(rows: &[L; 6]) -> L {
    // SAFETY: handed on to the caller.
    unsafe { rows[1].xor(rows[4]).xor(rows[5]).xor(rows[2].and(rows[3])) }
}

/// The four lanes, one over the other.
#[inline(always)]
fn fold(lanes: &[u8; RATE]) -> [u8; 16] {
    let (lanes, _) = lanes.as_chunks::<16>();
    lanes.iter().fold(0, |sum, lane| sum ^ u128::from_le_bytes(*lane)).to_le_bytes()
}

#[inline(always)]
fn padded(bytes: &[u8]) -> [u8; RATE] {
    let mut block = [0; RATE];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hex, pattern, sha256_hex};

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NONCE: &str = "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";

    fn array<const N: usize>(text: &str) -> [u8; N] {
        hex(text).try_into().unwrap()
    }

    #[test]
    fn the_drafts_vectors_hold_in_every_engine() {
        let message = "0405060704050607".repeat(15);
        let cipher = "bfc2085b7e8017da99b0b6d646ae4d01f4ba8f2e7dfca1d759ae48a135139b9aaac6b4f5db810d426be1fdaff4e14541\
                      53a34b11da78ed7e418ee2ee9853042e95536aecbb694cea1b16a478eb0d4d1bf6509b1ce652a45af58e0e46ffccfa2d\
                      0426e702391d2ff5813808b81748a490dd656465fed61f09";
        let vectors = [
            ("", "", "", "6093a1a8aab20ec635dc1ca71745b01b5bec4fc444c9ffbebd710d4a34d20eaf"),
            (
                "0102030401020304",
                &message,
                cipher,
                "7847eace74409ee56c8f4cf63a9c2841ce7c8bd567d7c0ca514c879a190b978c",
            ),
        ];
        for engine in Engine::available() {
            for (ad, message, cipher, tag) in vectors {
                let mut data = hex(message);
                let made = seal(engine, &array(KEY), &array(NONCE), &hex(ad), None, &mut data);
                assert_eq!((&data, &made[..]), (&hex(cipher), &hex(tag)[..]), "{engine}");
                assert!(
                    open(engine, &array(KEY), &array(NONCE), &hex(ad), &made, None, &mut data),
                    "{engine}"
                );
                assert_eq!(data, hex(message), "{engine}");
            }
        }
    }

    /// Known answers of another implementation (libaegis) for a whole page.
    #[test]
    fn a_page_is_sealed_as_another_implementation_seals_it() {
        let key: [u8; 32] = core::array::from_fn(|i| i as u8);
        let nonce: [u8; 32] = core::array::from_fn(|i| 0x80 + i as u8);
        let ad: [u8; 32] = core::array::from_fn(|i| 0x40 + i as u8);
        for engine in Engine::available() {
            let mut data = pattern(4096);
            let tag = seal(engine, &key, &nonce, &ad, None, &mut data);
            assert_eq!(
                sha256_hex(&data),
                "67dedb638892bd6365f2b93ceae67dfaadab542da746c441e64ddbcd55ee93e6",
                "{engine}"
            );
            assert_eq!(
                tag.to_vec(),
                hex("d880a97eed2d7a4fbcdf4b12c2a2bfc804132bc04a3f2cd696705b9b99131aeb"),
                "{engine}"
            );
        }
    }

    #[test]
    fn engines_agree_on_every_length_and_refuse_a_change_of_any_input() {
        for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 4096] {
            let (key, nonce) = ([7; 32], [9; 32]);
            let mut expected = pattern(len);
            let ad = pattern(len / 3);
            let tag = seal(Engine::Portable, &key, &nonce, &ad, None, &mut expected);
            for engine in Engine::available() {
                let mut data = pattern(len);
                assert_eq!(seal(engine, &key, &nonce, &ad, None, &mut data), tag, "{engine}, {len} bytes");
                assert_eq!(data, expected);
                // From elsewhere, which stays as it is.
                let (plain, mut away) = (pattern(len), vec![1; len]);
                assert_eq!(seal(engine, &key, &nonce, &ad, Some(&plain), &mut away), tag);
                assert_eq!(away, expected);
                let mut back = vec![1; len];
                assert!(open(engine, &key, &nonce, &ad, &tag, Some(&away), &mut back));
                assert_eq!((back, away), (plain, expected.clone()));
                let attempts = [
                    ([8; 32], nonce, ad.clone(), tag),
                    (key, [8; 32], ad.clone(), tag),
                    (key, nonce, [&ad[..], &[0]].concat(), tag),
                    (key, nonce, ad.clone(), [0; 32]),
                ];
                for (key, nonce, ad, tag) in attempts {
                    let mut copy = data.clone();
                    assert!(!open(engine, &key, &nonce, &ad, &tag, None, &mut copy));
                    assert!(copy.iter().all(|&b| b == 0), "what was not authentic came out");
                }
                assert!(open(engine, &key, &nonce, &ad, &tag, None, &mut data));
                assert_eq!(data, pattern(len));
            }
        }
    }
}
