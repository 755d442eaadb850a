// A type parameter must be persistent, also where it is not stored.
use cenote::Persist;
use std::marker::PhantomData;

#[derive(Persist)]
struct Holder<T> {
    value: T,
}

#[derive(Persist)]
#[persist(bound = "T: Send")]
struct Unbound<T> {
    marker: PhantomData<T>,
}

fn needs<T: Persist>() {}

fn main() {
    needs::<Holder<String>>();
}
