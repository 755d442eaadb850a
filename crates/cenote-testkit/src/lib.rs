//! Parts that tests and harnesses of several crates share. No program that ships depends on this
//! crate, and it depends on no crate of Cenote, so each of them can use it.
//!
//! | module | for |
//! | --- | --- |
//! | [`child`] | this test program again, as a child that is given a task, talks, or is killed |
//! | [`directories`] | scratch directories, and what files of a directory hold |
//! | [`ended`] | programs that are run to their end within a limit of time |
//! | [`environment`] | numbers that the environment sets: seeds, rounds, kills |
//! | [`lost`] | pages that cannot be read any more |
//! | [`random`] | numbers from a seed |
//! | [`strays`] | stray writes that do not end the process |
//! | [`time`] | a limit on waiting |
//! | [`words`] | words that a child writes until it is killed |
//!
//! [`ended`] and [`words`] return errors. The others panic where something fails, as tests do.

pub mod child;
pub mod directories;
pub mod ended;
pub mod environment;
pub mod lost;
pub mod random;
pub mod strays;
pub mod time;
pub mod words;
