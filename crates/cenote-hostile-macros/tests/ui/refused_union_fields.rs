// Safe code reads no field of a union, also where the union is a field itself, or generic.
#![forbid(unsafe_code)]
use cenote::field;
use cenote::ptr::FieldOffset;
use std::mem::ManuallyDrop;

#[derive(Clone, Copy)]
union Any {
    words: [usize; 2],
    text: &'static str,
    flag: bool,
}

#[derive(Clone, Copy)]
struct Pair {
    first: u32,
}

union OneField {
    pair: Pair,
}

union Generic<T> {
    value: ManuallyDrop<T>,
    nothing: (),
}

struct Outer {
    any: Any,
    one: (u8, OneField),
}

const FLAG: FieldOffset<Any, bool> = field!(Any, flag);

fn generic<T>() -> FieldOffset<Generic<T>, ManuallyDrop<T>> {
    field!(Generic<T>, value)
}

fn main() {
    let words = [8, 5];
    println!("{}", field!(Any, text).get(&Any { words }));
    let outer = Outer { any: Any { words }, one: (0, OneField { pair: Pair { first: 1 } }) };
    println!("{}", field!(Outer, any.text).get(&outer));
    let _ = field!(Outer, one.1.pair.first);
    let _ = field!(OneField, pair);
    let _ = FLAG;
    let _ = generic::<String>();
    // The union itself is a field like others.
    let _ = field!(Outer, any);
}
