//! The two ciphers over pages, each in several implementations that are tested to be equal.
//!
//! | engine | AES-256-XTS | AEGIS-256X4 |
//! | --- | --- | --- |
//! | [`Engine::Wide`] | four blocks to an instruction (VAES, AVX-512) | the same |
//! | [`Engine::AesNi`] | crate `aes`, which finds AES-NI itself | one block to an instruction |
//! | [`Engine::Portable`] | crate `aes` | rounds of crate `aes`: constant time everywhere, instructions on ARM |
//!
//! No implementation has a branch or an address that depends on a secret. None is from a C library: on the machine where
//! it was measured the wide engine has the speed of AWS-LC and four fifths of libaegis's, and its keys lie where we put them,
//! which those of a C library do not.

pub(crate) mod aegis;
mod lanes;
pub(crate) mod xts;
#[cfg(target_arch = "x86_64")]
mod xts_wide;

use std::sync::OnceLock;

/// An implementation of the ciphers. All give the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Engine {
    /// Vectors of 512 bits: x86-64 with VAES, VPCLMULQDQ, AVX-512F and BW.
    Wide,
    /// x86-64 with AES-NI.
    AesNi,
    /// Any processor.
    Portable,
}

impl Engine {
    /// The fastest that this processor has; asked once.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Engine> = OnceLock::new();
        *BEST.get_or_init(|| {
            [Self::Wide, Self::AesNi].into_iter().find(|e| e.is_available()).unwrap_or(Self::Portable)
        })
    }

    /// Whether this processor has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Wide => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("vaes")
                    && is_x86_feature_detected!("vpclmulqdq")
                    && is_x86_feature_detected!("aes")
                    && is_x86_feature_detected!("sse4.1")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AesNi => is_x86_feature_detected!("aes") && is_x86_feature_detected!("sse4.1"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Wide | Self::AesNi => false,
            Self::Portable => true,
        }
    }

    /// All that this processor has.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Wide, Self::AesNi, Self::Portable].into_iter().filter(|e| e.is_available()).collect()
    }
}

impl core::fmt::Display for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Wide => "wide",
            Self::AesNi => "aes-ni",
            Self::Portable => "portable",
        })
    }
}
