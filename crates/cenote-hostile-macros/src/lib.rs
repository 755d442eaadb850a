//! Macros that try to deceive `#[derive(Persist)]` and `field!`. Only the tests of crate `cenote`
//! use them.
//!
//! None of them writes `unsafe`. So no use of them may make a safe program unsound.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use proc_macro::{TokenStream, TokenTree};

/// Expansions of [`in_turn!`] so far, by its input.
static EXPANSIONS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

/// `in_turn! { {a} {b} {c} }` is `a` where it is expanded first, `b` where it is expanded next, and
/// `c` from then on. The count is of equal inputs.
#[proc_macro]
pub fn in_turn(input: TokenStream) -> TokenStream {
    let mut expansions = EXPANSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = expansions.get_or_insert_default().entry(input.to_string()).or_default();
    let turns: Vec<TokenTree> = input.into_iter().collect();
    let turn = turns.get(*count).or(turns.last());
    *count += 1;
    match turn {
        Some(TokenTree::Group(group)) => group.stream(),
        _ => TokenStream::new(),
    }
}

/// Puts the item in its argument in place of the item that it stands on. A derive macro that stands
/// above it has seen the old item.
#[proc_macro_attribute]
pub fn instead(item: TokenStream, _: TokenStream) -> TokenStream {
    item
}
