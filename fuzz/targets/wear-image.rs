//! Coverage-guided driver of the `wear-image` target of `cenote-fuzz`.
#![no_main]

use cenote_fuzz::FuzzTarget;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| FuzzTarget::WearImage.run(data));
