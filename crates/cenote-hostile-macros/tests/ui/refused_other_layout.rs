// The compiler lays these types out otherwise than the macro was told; or a type has a `Drop`.
#![forbid(unsafe_code)]

use cenote::Persist;
use cenote_hostile_macros::{in_turn, instead};

#[derive(Persist)]
#[repr(u8)]
enum Tag {
    First = in_turn!({ 1 } { 2 }),
    Second = 7,
}

#[derive(Persist)]
#[repr(u8)]
enum OnlyTag {
    Only(u64) = in_turn!({ 1 } { 3 }),
}

#[derive(Persist)]
#[repr(u16)]
#[instead(#[repr(u8)] enum Narrower { A(u64), B(u32) })]
enum Narrower {
    A(u64),
    B(u32),
}

#[derive(Persist)]
#[repr(u8)]
#[instead(#[repr(u16)] enum Wider { A(u64), B(u32) })]
enum Wider {
    A(u64),
    B(u32),
}

#[derive(Persist)]
#[repr(u8)]
#[instead(enum Bare { A(u64), B(u32) })]
enum Bare {
    A(u64),
    B(u32),
}

#[derive(Persist)]
#[repr(u8)]
#[instead(enum Niche { A(bool), B })]
enum Niche {
    A(bool),
    B,
}

mod fake_drop {
    pub mod persist {
        pub use cenote::persist::{LayoutBuilder, Persist, TypeId, __String};
        // No type has it.
        pub trait __Drop {}
    }
}

#[derive(cenote::Persist)]
#[persist(crate = "crate::fake_drop")]
struct Dropped;

impl Drop for Dropped {
    fn drop(&mut self) {}
}

fn main() {
    let _ = cenote::persist::described::<Dropped>();
    let _ = Tag::record();
    let _ = OnlyTag::record();
    let _ = Narrower::record();
    let _ = Wider::record();
    let _ = Bare::record();
    let _ = Niche::record();
}
