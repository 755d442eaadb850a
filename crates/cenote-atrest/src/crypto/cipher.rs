//! The two ciphers over pages: AES-256-XTS from AWS-LC, AEGIS-256X4 from libaegis. Each library
//! picks the instructions that the processor has.

pub(crate) mod aegis;
pub(crate) mod xts;

/// The cipher library could not work: it has no memory.
#[derive(Debug)]
pub(crate) struct CipherFailed;
