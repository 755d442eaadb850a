//! The tests of this crate's interface in one program, because each program is linked for itself; a
//! file that is none of these needs a process to itself.

mod any_moment;
mod common;
mod damage;
mod errors;
mod hosted_clients;
mod marked;
mod recovery;
mod rollback;
mod spare;
mod store;
mod truncated;
