//! The daemon (PUD-1, PUD-2, PUD-13; Puddles paper, 3.2, 4.1, 4.3, 4.6): owns a store, gives
//! puddles to programs that may have them, and replays the logs of programs that die.
//!
//! ```text
//! server.rs       the socket; a thread for each connection; beginning and end
//! config.rs       what a daemon is started with; limits; why it does not start
//! paths.rs        refuses paths of its sockets and a store's directory that others could change
//! connection.rs   one connection: its peer, its messages, how it ends
//! buffers.rs      buffers for messages
//! requests.rs     one request: dispatched, answered; requests about the store as a whole
//! pools.rs        requests about pools: made, granted, removed
//! puddles.rs      requests about puddles: granted, made, synced
//! objects.rs      requests about objects
//! imports.rs      requests about pools that come in, are copied or moved
//! backup.rs       requests about copies of the store
//! turns.rs        one backup at a time
//! overview.rs     lists of clients, and figures
//! answers.rs      parts of all answers
//! settling.rs     waiting until a pool can be had
//! spending.rs     counting against limits
//! exporter.rs     metrics for collectors, by HTTP
//! metrics_page.rs the text of the metrics, in Prometheus' format
//! ends.rs         ends of sessions: logs replayed, by the thread that waits for deaths
//! shared.rs       what all threads share
//! sessions.rs     all sessions and their states
//! session.rs      one session: its process and what it has made
//! pending.rs      a session's imports that are under way
//! transfers.rs    a session's files in memory, in which psyncs come
//! images.rs       whether the program that began a session still runs
//! quotas.rs       what users have, and what is promised to them
//! per_user.rs     counts of what lives, in all and by user
//! metrics.rs      counters
//! careful.rs      a rewriter of pointers whose panics refuse one pool
//! log.rs          lines on standard error
//! service.rs      a service manager: sockets that it passes, and messages to it
//! ```
//!
//! **A session is a process, until the process calls `exec`.** The kernel names the process (a
//! pidfd of the socket's peer) and its user. A session ends with a goodbye, or when the process or
//! its program has ended. A closed connection ends no session: the process may live, keep its
//! mappings and connect again. So the daemon replays logs only when no process writes them any
//! more.
//!
//! **Threads.** Each connection has one, which waits for its client only: a slow, silent or stopped
//! client keeps no other waiting. Changes of the catalog exclude each other, as in any store.
//!
//! **Memory** is bounded by the number of connections, which is limited in all and for each user. A
//! connection costs the used part of a thread's stack, and the catalog's records of its client.
//! Connections share buffers and the allocator's arenas ([`prepare_process`]). A connection over
//! the limit gets no thread.
//!
//! **The daemon cannot take back what it has given to a client** while the client's process lives:
//! a mapping stays. Permissions count when a pool is granted.

mod answers;
mod backup;
mod buffers;
mod careful;
mod config;
mod connection;
mod ends;
mod exporter;
mod images;
mod imports;
pub mod log;
mod metrics;
mod metrics_page;
mod objects;
mod overview;
mod paths;
mod pending;
mod per_user;
mod pools;
mod puddles;
mod quotas;
mod requests;
mod server;
pub mod service;
mod session;
mod sessions;
mod settling;
mod shared;
mod spending;
mod transfers;
mod turns;

pub use config::{Config, Limits, MetricsAt, StartError};
pub use server::{Pulse, Server};

/// Arenas of the allocator: threads rarely allocate at the same moment.
const ARENAS: u8 = 4;

/// Sets up a process that will be a daemon: before its threads start. Without it the daemon takes
/// more memory on a machine of many processors.
pub fn prepare_process() {
    // A C library that has no arenas needs none of it.
    let _ = cenote_sys::allocator::limit_arenas(ARENAS);
}
