//! The format's interface: writing, reading, and what no reader takes.

mod common;
mod golden;
mod hostile;
mod round_trip;
