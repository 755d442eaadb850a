//! `cenote-bench`: measures figures of the papers on Cenote. `cenote-bench --help` says how.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before the library is used for the first time: it reads its environment once.
    #[cfg(feature = "libpmemobj")]
    {
        use cenote_bench::peers::{libpmemobj, libpmemobj_sensors};
        libpmemobj::force_persistent_memory();
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if arguments.first().is_some_and(|first| first == libpmemobj_sensors::CHILD) {
            return libpmemobj_sensors::child(&arguments);
        }
        cenote_bench::figures::sensors::join_by(libpmemobj_sensors::WAYS);
        cenote_bench::figures::poseidon3::join_by(libpmemobj::VICTIMS);
    }
    cenote_bench::command::main()
}
