// `field!` finds fields of the value only, and only those of its type.
use cenote::field;
use cenote::ptr::FieldOffset;

struct Inner {
    number: u64,
}

struct Outer {
    inner: Box<Inner>,
    other: u32,
}

const WRONG_TYPE: FieldOffset<Outer, u64> = field!(Outer, other);

fn main() {
    let _ = field!(Outer, inner.number);
    let _ = field!(Outer, missing);
}
