//! Keys, ciphers, seals of pages, and the tree over them. No I/O, and nothing from `view/`.

pub mod binding;
#[cfg(feature = "ciphers")]
mod cipher;
#[cfg(feature = "ciphers")]
mod data_key;
mod error;
mod key;
#[cfg(not(feature = "ciphers"))]
mod no_ciphers;
mod protection;
mod seal;
#[cfg(test)]
mod testing;
pub mod tree;

#[cfg(not(feature = "ciphers"))]
use no_ciphers as data_key;

pub use binding::HEADER_LEN;
pub use cenote_layout::at_rest::{Mode, PageSide, Regions};
pub use cenote_sys::secret::Locking;
pub use error::{AtRestError, KeyError, PageError, PageFault};
pub use key::{Argon2Params, Keyring, MasterKey, PASSPHRASE_MAX};
pub use protection::{Anchor, Change, Checked, Expect, Protection, is_never_written};
pub use seal::{PAGE_LEN, Page, PageSealer, SealedPage};
