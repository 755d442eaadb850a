//! Tuples of one to six values.
//!
//! A tuple is a structure without a name. The compiler chooses the order of its fields, as it does
//! of a structure without `repr(C)`; the record says where each lies, and a store refuses a program
//! whose compiler chose otherwise.

use super::{LayoutBuilder, Persist, TypeId};
use core::mem::offset_of;

/// The name of a tuple: one function, and not one for each type.
#[inline(never)]
fn tuple_name(fields: &[fn() -> String]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| field()).collect();
    match &fields[..] {
        [only] => format!("({only},)"),
        fields => format!("({})", fields.join(", ")),
    }
}

macro_rules! tuples {
    ($($name:literal: ($($type:ident $at:tt),+);)*) => {$(
        // SAFETY: each field is described where the compiler has it.
        unsafe impl<$($type: Persist),+> Persist for ($($type,)+) {
            const TYPE_ID: TypeId = TypeId::of_name($name)$(.apply($type::TYPE_ID.0))+;
            const OWNS: bool = false $(|| $type::OWNS)+;

            fn type_name() -> String {
                tuple_name(&[$($type::type_name),+])
            }

            fn describe(layout: &mut LayoutBuilder) {
                $(layout.field::<$type>(stringify!($at), offset_of!(Self, $at));)+
            }
        }
    )*};
}

// No declared type has such a name.
tuples! {
    "(1)": (A 0);
    "(2)": (A 0, B 1);
    "(3)": (A 0, B 1, C 2);
    "(4)": (A 0, B 1, C 2, D 3);
    "(5)": (A 0, B 1, C 2, D 3, E 4);
    "(6)": (A 0, B 1, C 2, D 3, E 4, F 5);
}
