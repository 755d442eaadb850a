// Attributes that say nothing, or the wrong thing.
use cenote::Persist;

#[derive(Persist)]
#[persist(name = "u64")]
struct Impostor {
    value: u64,
}

#[derive(Persist)]
#[persist(name = "RegionPtr")]
struct Impostor2 {
    value: u64,
}

#[derive(Persist)]
#[persist(name = "has space")]
struct Space {
    value: u64,
}

#[derive(Persist)]
#[persist(size = 8)]
struct Unknown {
    value: u64,
}

#[derive(Persist)]
struct Unknown2 {
    #[persist(skip)]
    value: u64,
}

#[derive(Persist)]
struct Twice {
    a: u64,
    #[persist(name = "a")]
    b: u64,
}

fn main() {}
