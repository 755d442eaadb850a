//! An off-holder means something at its place only: it is not copied, nor its value swapped.

use cenote::{Persist, Ptr, Reader, RelPtr, Tx};

#[derive(Persist)]
struct Node {
    value: u64,
    next: RelPtr<Node>,
}

fn swap(tx: &mut Tx<'_>, node: Ptr<Node>, other: &mut Node) -> cenote::Result<()> {
    core::mem::swap(tx.get_mut(node)?, other);
    Ok(())
}

fn copy(tx: &Tx<'_>, node: Ptr<Node>) -> cenote::Result<RelPtr<Node>> {
    Ok(tx.get(node)?.next)
}

fn main() {}
