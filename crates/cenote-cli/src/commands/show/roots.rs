//! The roots of a pool, with names and with numbers.

use cenote::{Pool, TypeId};
use cenote_layout::heap::ROOT_COUNT;
use cenote_layout::values::shown::PathRoot;

/// The numbered root under which the names are, and the type of what is there.
const DIRECTORY: u16 = 1023;
const DIRECTORY_TYPE: TypeId = TypeId::of_name("cenote/RootDirectory");

/// A root that is set.
pub(super) struct RootOf {
    pub(super) root: PathRoot,
    pub(super) addr: u64,
    pub(super) type_id: TypeId,
}

/// The roots that are set, named ones first, and what is damaged.
pub(super) fn roots_of(pool: &Pool) -> (Vec<RootOf>, Vec<String>) {
    let (mut roots, mut wrong) = (Vec::new(), Vec::new());
    match pool.named_roots() {
        Ok(named) => roots.extend(named.into_iter().map(|root| RootOf {
            root: PathRoot::Name(root.name),
            addr: root.addr,
            type_id: root.type_id,
        })),
        Err(error) => wrong.push(format!("the names of roots: {error}")),
    }
    for index in (0..ROOT_COUNT).filter_map(|index| u16::try_from(index).ok()) {
        let (mut addr, mut type_id) = match pool.heap().root(index) {
            Ok(root) => (root.addr, root.type_id),
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        if index == DIRECTORY && type_id == DIRECTORY_TYPE && addr != 0 {
            // The directory keeps where the root itself leads.
            let mut words = [0; 16];
            if pool.read_at(addr, &mut words).is_err() {
                continue;
            }
            let word = |at: usize| {
                words[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
            };
            (addr, type_id) = (word(0), TypeId(word(8)));
        }
        if addr != 0 {
            roots.push(RootOf { root: PathRoot::Number(index), addr, type_id });
        }
    }
    (roots, wrong)
}
