// Persistent data changes only through transactions.
use cenote::Persist;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

#[derive(Persist)]
struct WithCell {
    count: Cell<u64>,
}

#[derive(Persist)]
struct WithAtomic {
    count: AtomicU64,
}

#[derive(Persist)]
struct WithMutex {
    count: [Mutex<u64>; 2],
}

#[derive(Persist)]
struct WithMarker {
    count: PhantomData<Cell<u64>>,
}

fn main() {}
