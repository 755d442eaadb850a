// Nothing that a program writes could pin these layouts.
use cenote::Persist;

#[derive(Persist)]
struct Tuple {
    pair: (u8, u64),
}

#[derive(Persist)]
struct Maybe {
    number: Option<u64>,
}

#[derive(Persist)]
#[repr(u8)]
enum InVariant {
    Some(Option<bool>),
    None,
}

fn main() {}
