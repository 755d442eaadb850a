// A macro that expands to another type each time: offset and type of a field are of one of them.
#![forbid(unsafe_code)]
#![allow(dead_code)]

use cenote::{Persist, field};
use cenote_hostile_macros::in_turn;

#[repr(C)]
struct Near {
    field: u64,
}

#[repr(C)]
struct Far {
    before: [u64; 1 << 20],
    field: u64,
}

#[derive(Persist)]
struct Data {
    words: in_turn!({ [u64; 2] } { &'static str } { u8 }),
}

fn main() {
    let near = Near { field: 7 };
    // A field of `Near` or of `Far`: this line compiles for the one that the closure gets.
    let field = field!(in_turn!({ Far } { Near } { Far }), field);
    assert_eq!(*field.get(&near), 7);
    assert_eq!(field.offset(), 0);
    let data = Data { words: [1, 2] };
    assert_eq!(*field!(Data, words).get(&data), [1, 2]);
    assert_eq!(Data::record().fields[0].size, 16);
}
