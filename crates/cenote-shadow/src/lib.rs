//! One engine of psyncs, for raw objects and for pools in shadowed mode, in the process that has
//! the journal and in a daemon's client.
//!
//! A psync makes what was stored into *shadows* durable in their *primaries*, all of it or nothing.
//! Each shadow is a [`ShadowPart`]: an object, or a puddle of a pool. The engine takes the parts
//! through the states. The crate of a part knows its form, finds its written pages, and holds its
//! writers.
//!
//! | state | what has happened | by |
//! | --- | --- | --- |
//! | entered | the caller has the parts: no other psync of them is under way | the caller |
//! | held | notes of written pages are taken; the pages are protected, and copied if writers go \
//! on | [`Psync::hold`] |
//! | drafted | what differs from the primaries is a record, sealed where there is protection | \
//! [`Psync::commit`] |
//! | appended | the record is in the journal | the same |
//! | durable | the journal is synced: **this sync commits** | the same |
//! | applied | the record is queued for the primaries; trees count as of it | the same |
//!
//! In a daemon's client, [`Psync::pack`] follows *held*: pages and sealed lines go into a transfer,
//! and the daemon does the rest ([`Psync::send`]).
//!
//! # Invariants
//!
//! * A psync that ends before *durable* leaves its parts as they were: their pages are noted again
//!   when it is dropped ([`ShadowPart::note_again`]). After *durable* they are not, also if a later
//!   step fails.
//! * A record numbers its primaries in the order in which parts got a number. A part has one if it
//!   has changed, or if [`ShadowPart::NAMES_ALL`] says so.
//! * Headers of protections are the last lines of a record, because a part's header may depend on
//!   other parts.
//!
//! The front page of `cenote-object` and `cenote_store`'s module `psync` argue why that is enough.

mod commit;
mod part;
mod transfer;

pub use commit::Psync;
pub use part::{PsyncState, ShadowPart};
pub use transfer::Packed;
