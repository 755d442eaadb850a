//! The daemon, its clients, and their ends: each daemon is the real program, and each client that dies is a real process.

mod clients;
mod common;
mod ends;
mod hostile;
mod objects;
mod permissions;
mod shadowed;
mod shared;
