//! `#[derive(Persist)]`: the implementation of `cenote::Persist` for a program's own types.
//!
//! The output of the macro is true for every program that compiles:
//!
//! * Every field's type is `Persist`, and the list of fields is complete. The compiler infers the
//!   types, and generated code takes a value apart with a pattern that has no `..`.
//! * Offsets and discriminants are the compiler's (`expand.rs` says how). Names, macros and
//!   attributes of the program cannot change them. An enum needs `repr(u8)` or the like, because
//!   other programs have to find its discriminant.
//! * The type has no `Drop`. The macro implements a trait for the type that every type with `Drop`
//!   has too, and the compiler refuses the overlap.

mod attributes;
mod expand;

use proc_macro::TokenStream;

/// Makes a structure or an enum a type whose values may lie in persistent memory.
///
/// Every field must be `Persist` itself, and so must every type parameter. Structures need no
/// `repr`. Enums need one of `#[repr(u8)]`, `u16`, `u32`, `u64`, `i8`, `i16`, `i32`, `i64`, which
/// fixes where the discriminant lies. Unions, lifetime parameters, `repr(packed)` and types that
/// implement `Drop` are refused.
///
/// The type's name in the store is the name of the package and that of the type: `package::Type`.
/// The module is not part of it, so that a type may move between modules. Data is found by this
/// name: a type or a package that is renamed keeps the old name with `#[persist(name = "...")]`. In
/// the same way a field or a variant is renamed without making another type of it.
///
/// | attribute | on | meaning |
/// | --- | --- | --- |
/// | `#[persist(name = "list::Node")]` | type | the declared name |
/// | `#[persist(name = "next")]` | field, variant | its name in the record |
/// | `#[persist(bound = "K: Key")]` | type | replaces `T: Persist` of parameters; must imply it |
/// | `#[persist(owned)]` | type | its blocks have an owner, `Owned`, which makes and frees them |
/// | `#[persist(crate = "path")]` | type | where the crate `cenote` is, if not at `::cenote` |
#[proc_macro_derive(Persist, attributes(persist))]
pub fn derive_persist(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
