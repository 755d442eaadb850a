// Macros that change what they expand to, and attributes that replace what was described.
#![forbid(unsafe_code)]

use cenote::Persist;
use cenote_hostile_macros::{in_turn, instead};

#[derive(Persist)]
struct Second {
    text: in_turn!({ &'static str } { [u64; 2] }),
}

#[derive(Persist)]
struct Third {
    text: in_turn!({ &'static str } { &'static str } { [u64; 2] }),
}

#[derive(Persist)]
#[repr(u8)]
enum Variant {
    Text(in_turn!({ &'static str } { &'static str } { [u64; 2] })),
}

#[derive(Persist)]
#[instead(struct Replaced { text: &'static str })]
struct Replaced {
    text: u64,
}

#[derive(Persist)]
#[instead(struct Longer { text: u64, more: &'static str })]
struct Longer {
    text: u64,
}

#[derive(Persist)]
#[instead(#[repr(packed)] struct Packed { a: u8, b: u64 })]
struct Packed {
    a: u8,
    b: u64,
}

fn main() {}
