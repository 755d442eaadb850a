// `field!` of types with lifetimes, generics, nested and tuple fields, and a union as a whole.
#![forbid(unsafe_code)]
#![deny(warnings)]
use cenote::field;
use cenote::ptr::FieldOffset;

#[derive(Clone, Copy)]
#[allow(dead_code)]
union Any {
    number: u32,
}

struct Holder<'x, T> {
    text: &'x str,
    pair: (u8, T),
    any: Any,
}

fn text<'x, T>() -> FieldOffset<Holder<'x, T>, &'x str> {
    field!(Holder<'x, T>, text)
}

const ANY: FieldOffset<Holder<'static, u64>, Any> = field!(Holder<'static, u64>, any);

#[repr(C, packed)]
struct Packed {
    byte: u8,
    bytes: [u8; 3],
}

fn main() {
    let local = String::from("local");
    let mut holder = Holder { text: &local, pair: (1, 2u64), any: Any { number: 3 } };
    assert_eq!(*text().get(&holder), "local");
    *field!(Holder<'_, u64>, pair.1).get_mut(&mut holder) += 1;
    assert_eq!(holder.pair, (1, 3));
    let holder = Holder { text: "static", pair: (1, 2), any: Any { number: 3 } };
    let _: &Any = ANY.get(&holder);
    let packed = Packed { byte: 1, bytes: [2, 3, 4] };
    assert_eq!(field!(Packed, bytes).get(&packed)[2] + packed.byte, 5);
}
