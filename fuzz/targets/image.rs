//! Coverage-guided driver of the `image` target of `cenote-fuzz`.
#![no_main]

use cenote_fuzz::Target;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| Target::Image.run(data));
