//! `cenote-bench-peers`: as `cenote-bench`, with other systems beside Cenote.

use std::process::ExitCode;

#[cfg(feature = "libpmemobj")]
fn main() -> ExitCode {
    use cenote_bench_peers::libpmemobj;
    // Before the library is used for the first time: it reads its environment once.
    libpmemobj::force_persistent_memory();
    cenote_bench::command::main("cenote-bench-peers", Some((libpmemobj::cases, libpmemobj::SYSTEM)))
}

#[cfg(not(feature = "libpmemobj"))]
fn main() -> ExitCode {
    eprintln!(
        "cenote-bench-peers: built without any peer.\n\
         For libpmemobj: apt-get install libpmemobj-dev, then\n\
         cargo run --release -p cenote-bench-peers --features libpmemobj -- puddles-table3"
    );
    ExitCode::from(2)
}
