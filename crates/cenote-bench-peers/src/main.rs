//! `cenote-bench-peers`: as `cenote-bench`, with other systems beside Cenote.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before the library is used for the first time: it reads its environment once.
    #[cfg(feature = "libpmemobj")]
    cenote_bench_peers::libpmemobj::force_persistent_memory();
    cenote_bench::command::main("cenote-bench-peers", Some(cenote_bench_peers::PEERS))
}
