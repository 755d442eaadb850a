// A list in a program that allows no `unsafe` and no warnings.
#![forbid(unsafe_code)]
#![deny(warnings)]

use cenote::{Persist, Ptr, field};

#[derive(Persist)]
struct List<T> {
    head: Option<Ptr<Node<T>>>,
    len: u64,
}

#[derive(Persist)]
struct Node<T> {
    value: T,
    next: Option<Ptr<Node<T>>>,
}

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
enum Colour {
    Red,
    Green(u32),
}

#[derive(Persist)]
#[repr(C)]
struct Empty;

fn main() {
    let list = List { head: None, len: 0 };
    assert_eq!(*field!(List<Colour>, len).get(&list), list.len);
    assert!(list.head.is_none());
    let node = Node { value: [Colour::Red, Colour::Green(1)], next: None };
    assert!(node.next.is_none() && node.value.len() == 2);
    if let Colour::Green(n) = node.value[1] {
        assert_eq!(n, 1);
    }
    let Empty = Empty;
    assert_eq!(cenote::persist::types_of::<List<Colour>>().map(|types| types.len()), Ok(3));
}
