// Names in scope that the macros could mistake for their own: the description is the compiler's.
#![forbid(unsafe_code)]
#![deny(warnings)]
#![allow(non_camel_case_types, non_upper_case_globals, dead_code, unused_macros)]

use cenote::persist::TypeRecord;
use cenote::{Persist, Ptr, field};

mod core {}
mod std {}
mod alloc {}
mod cenote_derive {}

macro_rules! panic { ($($any:tt)*) => { compile_error!("shadowed") } }
macro_rules! assert { ($($any:tt)*) => { compile_error!("shadowed") } }
macro_rules! concat { ($($any:tt)*) => { compile_error!("shadowed") } }
macro_rules! env { ($($any:tt)*) => { compile_error!("shadowed") } }

type u8 = i64;
type u64 = i8;
type usize = i8;
type String = ();
struct Option;
struct MaybeUninit;
struct PersistentTypesDoNotImplementDrop;
trait LayoutBuilder {
    fn field(&self, _: i8) -> i8 {
        1
    }
    fn variant(&self, _: i8) -> i8 {
        1
    }
}
impl<T: ?Sized> LayoutBuilder for T {}

const PERSIST_TAG_0: ::core::primitive::u8 = 200;
const layout: ::core::primitive::u8 = 7;
const value: ::core::primitive::u8 = 8;
const tag: ::core::primitive::u8 = 9;

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
enum Kind {
    A = 1,
    B = PERSIST_TAG_0 + 1,
    C,
    D = layout,
    E = value + tag,
    F { layout: ::core::primitive::u32, value: Ptr<Holder> },
}

#[derive(Persist, Clone, Copy)]
#[repr(C)]
struct Holder {
    layout: ::core::primitive::u8,
    slot: ::core::primitive::u64,
    tag: Ptr<Kind>,
}

fn tags(record: &TypeRecord) -> Vec<(&str, ::core::primitive::u64)> {
    record.variants.iter().map(|variant| (variant.name.as_str(), variant.tag.value)).collect()
}

fn main() {
    let wanted = [("A", 1), ("D", 7), ("E", 17), ("F", 18), ("B", 201), ("C", 202)];
    assert_eq!(tags(&Kind::record()), wanted);
    let offsets: Vec<_> = Holder::record().fields.iter().map(|field| field.offset).collect();
    assert_eq!(offsets, [0, 8, 16]);
    assert_eq!(field!(Holder, tag).offset(), 16);
}
