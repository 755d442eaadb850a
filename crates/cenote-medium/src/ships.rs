//! Programs that ship have no planted bugs.

/// Refuses to compile a program that ships with planted bugs in it. The main file of each program
/// that ships calls it. Builds with assertions, as tests are, may have them.
#[macro_export]
macro_rules! ships {
    () => {
        #[cfg(not(debug_assertions))]
        const _: () = ::core::assert!(
            !$crate::planted::COMPILED,
            "this program would ship with planted bugs: build it without the crates that turn on \
             the feature `planted-bugs` of cenote-medium (`cargo build --release -p PACKAGE`)"
        );
    };
}
