//! Packing chunks, one by one, so that each is checked and unpacked by itself and a reader needs no
//! window of what came before.

use crate::error::ArchiveError;
use cenote_layout::archive::Codec;

/// Zstandard's level: as fast as a disk, and most of what higher ones save.
#[cfg(feature = "zstd")]
const LEVEL: i32 = 3;

/// Whether this program can pack and unpack with a codec.
#[must_use]
pub const fn is_built(codec: Codec) -> bool {
    match codec {
        Codec::None => true,
        Codec::Zstd => cfg!(feature = "zstd"),
    }
}

/// Packs and unpacks.
pub(crate) struct Packer {
    #[cfg(feature = "zstd")]
    packing: Option<zstd_safe::CCtx<'static>>,
    #[cfg(feature = "zstd")]
    unpacking: Option<zstd_safe::DCtx<'static>>,
}

impl Packer {
    pub(crate) fn new(codec: Codec) -> Result<Self, ArchiveError> {
        if !is_built(codec) {
            return Err(ArchiveError::NoZstd);
        }
        Ok(Self {
            #[cfg(feature = "zstd")]
            packing: None,
            #[cfg(feature = "zstd")]
            unpacking: None,
        })
    }

    /// Packs `bytes` into `out`, if that is shorter. `None`: it is not, or the codec packs nothing.
    #[cfg(feature = "zstd")]
    pub(crate) fn pack<'a>(
        &mut self,
        codec: Codec,
        bytes: &[u8],
        out: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        if codec != Codec::Zstd {
            return None;
        }
        // No room for more than `bytes` has: what does not get shorter is not wanted.
        out.resize(bytes.len(), 0);
        let context = self.packing.get_or_insert_with(zstd_safe::CCtx::create);
        let len = context.compress(out.as_mut_slice(), bytes, LEVEL).ok()?;
        out.get(..len).filter(|packed| packed.len() < bytes.len())
    }

    /// The same in a program without Zstandard.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn pack<'a>(&mut self, _: Codec, _: &[u8], _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        None
    }

    /// Unpacks into `out`, which is as long as what it becomes. `false`: it is nothing packed, or
    /// becomes something longer or shorter.
    #[cfg(feature = "zstd")]
    pub(crate) fn unpack(&mut self, packed: &[u8], out: &mut [u8]) -> bool {
        let context = self.unpacking.get_or_insert_with(zstd_safe::DCtx::create);
        let wanted = out.len();
        context.decompress(out, packed).is_ok_and(|len| len == wanted)
    }

    /// The same in a program without Zstandard.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn unpack(&mut self, _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}
