// Safe code gets neither the store under its handles, nor torn values.
#![forbid(unsafe_code)]

use cenote::{Reader, Store};

// A bound on a trait brings the functions of its sealed supertrait.
fn of_a_reader<R: Reader>(reader: &R) {
    let _ = reader.store();
}

fn of_a_store(store: &Store) {
    let _ = store.as_raw();
}

fn half_of_a_transaction(store: &Store) {
    let _ = store.declare_whole("p");
}

fn main() {}
