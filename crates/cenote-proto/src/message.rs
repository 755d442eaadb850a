//! The messages, and their bytes.

mod reply;

pub use reply::{
    MediumText, ObjectItem, PoolItem, PuddlePlace, Refusal, Reply, Stat, UndecidedLogsItem,
};

use cenote_layout::catalog::{HeapKind, PoolMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of an [`ImportSpec`](crate::ImportSpec).
pub const IMPORT_LEN_MAX: usize = 4 << 20;
/// Most pools of one import through a daemon.
pub const IMPORT_POOLS_MAX: usize = 1024;

/// The version that this release speaks, and the only one that it understands.
pub const VERSION: u16 = 9;
/// Most bytes of one message, its header included.
pub const MESSAGE_LEN_MAX: usize = 64 << 10;
/// `CNTE`, little endian.
const MAGIC: u32 = u32::from_le_bytes(*b"CNTE");
const HEADER_LEN: usize = 16;

/// Why a packet is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is shorter than a header, or says another length than it has.
    #[error("the message has {found} bytes and says {said}")]
    Length {
        /// Bytes that were received.
        found: usize,
        /// Bytes that it says.
        said: u64,
    },
    /// It does not begin as a message does.
    #[error("it is no message of Cenote")]
    Magic,
    /// Another version.
    #[error(
        "the message is of protocol version {found}, and this release speaks {VERSION}: \
         use releases that go together"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// The body is none of this version.
    #[error("the message's body cannot be read")]
    Body,
    /// It is too long to be sent.
    #[error("the message would have {len} bytes, and {MESSAGE_LEN_MAX} is the most")]
    TooLong {
        /// Bytes that it would have.
        len: usize,
    },
    /// An import is too large to be asked of a daemon.
    #[error(
        "the import has {pools} pools and a list of {len} bytes, and a daemon takes {} and {}: \
         import fewer pools at once",
        IMPORT_POOLS_MAX,
        IMPORT_LEN_MAX
    )]
    SpecTooLong {
        /// Bytes of its list.
        len: usize,
        /// Pools.
        pools: usize,
    },
}

/// How a pool is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// Its mode.
    pub mode: PoolMode,
    /// Its heap.
    pub heap: HeapKind,
    /// Bytes of its first puddle.
    pub puddle_size: u64,
    /// Most bytes that it may take.
    pub size_max: u64,
    /// Permission bits.
    pub permissions: u32,
}

/// The packet of a message.
///
/// # Errors
/// [`DecodeError::TooLong`].
pub fn encode<T: Serialize>(number: u32, message: &T) -> Result<Vec<u8>, DecodeError> {
    let body = postcard::to_allocvec(message).map_err(|_| DecodeError::Body)?;
    let len = HEADER_LEN + body.len();
    if len > MESSAGE_LEN_MAX {
        return Err(DecodeError::TooLong { len });
    }
    let mut packet = Vec::with_capacity(len);
    packet.extend_from_slice(&MAGIC.to_le_bytes());
    packet.extend_from_slice(&VERSION.to_le_bytes());
    packet.extend_from_slice(&[0; 2]);
    packet.extend_from_slice(&number.to_le_bytes());
    packet.extend_from_slice(&(body.len() as u32).to_le_bytes());
    packet.extend_from_slice(&body);
    Ok(packet)
}

/// The message of a packet, and its number.
///
/// # Errors
/// Why it is none.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<(u32, T), DecodeError> {
    let (number, body) = split(packet)?;
    let (message, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Body)?;
    if rest.is_empty() { Ok((number, message)) } else { Err(DecodeError::Body) }
}

/// The number of a packet whose body cannot be read, for the answer that says so; 0 if it has none.
#[must_use]
pub fn peek(packet: &[u8]) -> u32 {
    field(packet, 8).map_or(0, u32::from_le_bytes)
}

fn field<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..at + N)?.try_into().ok()
}

fn split(packet: &[u8]) -> Result<(u32, &[u8]), DecodeError> {
    let short = || DecodeError::Length { found: packet.len(), said: HEADER_LEN as u64 };
    if field(packet, 0).map(u32::from_le_bytes).ok_or_else(short)? != MAGIC {
        return Err(DecodeError::Magic);
    }
    let version = field(packet, 4).map(u16::from_le_bytes).ok_or_else(short)?;
    if version != VERSION {
        return Err(DecodeError::Version { found: version });
    }
    let zero: [u8; 2] = field(packet, 6).ok_or_else(short)?;
    let len = field(packet, 12).map(u32::from_le_bytes).ok_or_else(short)?;
    let body = packet.get(HEADER_LEN..).unwrap_or_default();
    if body.len() as u64 != u64::from(len) || packet.len() > MESSAGE_LEN_MAX {
        return Err(DecodeError::Length {
            found: packet.len(),
            said: HEADER_LEN as u64 + u64::from(len),
        });
    }
    if zero != [0; 2] {
        return Err(DecodeError::Body);
    }
    Ok((peek(packet), body))
}

#[cfg(test)]
mod tests;
