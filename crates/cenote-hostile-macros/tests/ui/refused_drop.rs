// No code runs `drop` when the process ends.
use cenote::Persist;

#[derive(Persist)]
struct Guard {
    value: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {}
}

#[derive(Persist)]
struct Generic<T: Persist> {
    value: T,
}

impl<T: Persist> Drop for Generic<T> {
    fn drop(&mut self) {}
}

fn main() {}
