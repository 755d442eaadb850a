// Long tuples have no record: a structure does the same.
use cenote::Persist;

#[derive(Persist)]
struct Tuple {
    seven: (u8, u8, u8, u8, u8, u8, u8),
}

fn main() {}
