// What points into the memory of one process cannot be persistent.
use cenote::{Persist, Ptr};
use std::rc::Rc;

#[derive(Persist)]
struct Reference {
    text: &'static str,
}

#[derive(Persist)]
struct Boxed {
    next: Option<Box<Boxed>>,
}

#[derive(Persist)]
struct Growing(Vec<u8>, String);

#[derive(Persist)]
struct Counted {
    shared: Rc<u64>,
}

#[derive(Persist)]
struct Raw {
    raw: *const u8,
}

#[derive(Persist)]
struct Function {
    call: fn(u32) -> u32,
}

#[derive(Persist)]
struct Hidden {
    link: Option<Ptr<String>>,
}

fn main() {}
