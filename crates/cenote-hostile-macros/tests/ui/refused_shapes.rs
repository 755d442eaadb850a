// Unions, borrowers, packed structures and enums whose layout is open.
use cenote::{Persist, Ptr};

#[derive(Persist)]
union Either {
    a: u64,
    b: f64,
}

#[derive(Persist)]
struct Borrower<'a> {
    text: &'a u64,
}

#[derive(Persist)]
#[repr(C, packed)]
struct Packed {
    byte: u8,
    link: Option<Ptr<u64>>,
}

#[derive(Persist)]
enum Plain {
    A,
    B,
}

#[derive(Persist)]
#[repr(C)]
enum LikeC {
    A,
    B,
}

#[derive(Persist)]
#[repr(usize)]
enum Machine {
    A,
    B,
}

#[derive(Persist)]
enum Nothing {}

fn main() {}
