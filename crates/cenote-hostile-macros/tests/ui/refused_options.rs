// Of these the compiler chooses what `None` is, or an owner would lie in an enum.
use cenote::{Owned, Persist};

#[derive(Persist)]
#[repr(u8)]
enum Kind {
    One,
    Two,
}

#[derive(Persist)]
struct Flag {
    number: u32,
    is_set: bool,
}

// `None` is a discriminant that no variant has.
#[derive(Persist)]
struct Maybe {
    kind: Option<Kind>,
}

// `None` is a third value of the `bool`.
#[derive(Persist)]
#[repr(u8)]
enum InVariant {
    Some(Option<Flag>),
    None,
}

// The same of the tag of the inner one.
#[derive(Persist)]
struct Twice {
    number: Option<Option<u32>>,
}

// A tag of 16 bytes.
#[derive(Persist)]
struct Wide {
    number: Option<u128>,
}

#[derive(Persist)]
#[persist(owned)]
struct Node {
    next: Option<Owned<Node>>,
}

// A type that is never used is not looked at.
fn main() {
    (Maybe::record(), InVariant::record(), Twice::record(), Wide::record(), Node::record());
}
