//! Defines the messages between a daemon and its clients (PUD-1; Puddles paper, 4.3 and Table 3).
//!
//! One message is one packet of a UNIX-domain socket of type `SOCK_SEQPACKET`: no message is ever
//! half there, and descriptors come with their message. A packet is a header of 16 bytes and a body
//! in the encoding of postcard:
//!
//! ```text
//!  0  magic     u32   "CNTE"
//!  4  version   u16   of the sender; a daemon refuses any other than its own, and names both
//!  6  zero      u16
//!  8  number    u32   of the request; its reply has the same
//! 12  len       u32   bytes of the body: as many as follow
//! ```
//!
//! No sender is believed. A packet has at most [`MESSAGE_LEN_MAX`] bytes, and decoding takes at
//! most a few times its length of memory. A packet that does not fit the format, to its last byte,
//! is a [`DecodeError`]. The receiver judges whether a request may be done. There is no `unsafe`
//! code.

#![forbid(unsafe_code)]

mod census;
mod channel;
mod clients;
mod hold;
mod message;
mod requests;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod spec;

pub use channel::{Channel, DESCRIPTORS_MAX, Listener, Received};
pub use clients::{ClientItem, ClientState, HeldPool};
pub use hold::{Call, Stance};
pub use message::{
    DecodeError, IMPORT_LEN_MAX, IMPORT_POOLS_MAX, MESSAGE_LEN_MAX, MediumText, ObjectItem,
    PoolItem, PoolSpec, PuddlePlace, Refusal, Reply, Stat, UndecidedLogsItem, VERSION, decode,
    encode, peek,
};
pub use requests::{Request, Rights, Topic};
pub use spec::{ImportPoolSpec, ImportSpec};
