//! Imports of a session that are under way, by number.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cenote_store::relocate::Import;

use crate::per_user::Counted;
use crate::quotas::Promise;

/// One import.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) import: Import,
    pub(crate) puddles: u64,
    pub(crate) bytes: u64,
    pub(crate) _promise: Option<Promise>,
    pub(crate) _place: Counted,
}

/// The imports of a session, by number.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<(u64, BTreeMap<u64, Pending>)>);

impl Imports {
    pub(crate) fn add(&self, pending: Pending) -> u64 {
        let mut imports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        imports.0 += 1;
        let number = imports.0;
        imports.1.insert(number, pending);
        number
    }

    pub(crate) fn take(&self, number: u64) -> Option<Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number)
    }

    pub(crate) fn put_back(&self, number: u64, pending: Pending) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.insert(number, pending);
    }

    /// Takes all.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Pending> {
        let mut imports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut imports.1).into_values()
    }
}
