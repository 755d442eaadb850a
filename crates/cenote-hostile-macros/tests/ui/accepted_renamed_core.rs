// What the program calls `core` and `std` is not what the macros ask for offsets.
#![forbid(unsafe_code)]

extern crate self as core;
extern crate self as std;

pub mod mem {
    macro_rules! far_away {
        ($($any:tt)*) => {
            64 << 20
        };
    }
    pub(crate) use far_away as offset_of;
}

#[derive(cenote::Persist)]
#[repr(C)]
struct Pair {
    first: u32,
    second: u64,
}

fn main() {
    assert_eq!(cenote::field!(Pair, second).offset(), 8);
    let record = <Pair as cenote::Persist>::record();
    let offsets: Vec<_> = record.fields.iter().map(|field| field.offset).collect();
    assert_eq!(offsets, [0, 8]);
}
