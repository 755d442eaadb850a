//! The daemon, its clients, and their ends: each daemon is the real program, and each client that
//! dies is a real process.

mod backups;
mod calls;
mod circles;
mod clients;
mod common;
mod copies;
mod cut;
mod damaged;
mod elsewhere;
mod ends;
mod guarded;
mod hostile;
mod images;
mod imports;
mod limits;
mod logged;
mod lost;
mod marks;
mod meddling;
mod metrics;
mod moving;
mod objects;
mod ordinary;
mod permissions;
mod service;
mod shadowed;
mod shared;
mod silent;
mod snapshots;
mod types;
