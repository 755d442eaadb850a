//! The daemon: it owns a store, hands puddles to programs that may have them, and replays the logs of those that die (PUD-1, PUD-2, PUD-13;
//! Puddles paper, 3.2, 4.1, 4.3, 4.6).
//!
//! ```text
//! server.rs       the socket; a thread for each connection; limits
//! connection.rs   one connection: its peer, its messages, how it ends
//! sessions.rs     who is there; the thread that waits for processes to end and has their logs replayed
//! images.rs       whether a client's program runs still, or its process has called exec
//! requests.rs     one request: checked, done, answered
//! objects.rs      those about objects
//! parcels.rs      files in memory that psyncs come in
//! imports.rs      pools that come in, are copied and moved
//! quotas.rs       what a client, and a user, may make
//! overview.rs     lists of who is there, and figures
//! metrics.rs      what is counted, in Prometheus' text format
//! exporter.rs     that text for collectors, by HTTP
//! log.rs          lines on standard error
//! service.rs      a service manager: sockets that it passes, and what it is told
//! ```
//!
//! **A session is a process, until that calls `exec`.** The kernel says which (a pidfd of the
//! socket's peer), and as whom it acts. It ends with a goodbye, or when the process or its program
//! has ended; a connection that is closed ends nothing, because the process may live, with its
//! mappings, and come back. So logs are replayed only when no process writes them any more.
//!
//! **Threads.** Each connection has one, which waits for its client and for nothing else: a client that is slow, silent or stopped keeps nobody waiting. Changes of the catalog
//! exclude each other, as in any store. Memory is bounded by the number of connections, which is limited in all and for each user: each has a thread's stack, as far as it is used, and what the catalog says of its
//! client. Buffers are shared, and so are the allocator's arenas ([`prepare_process`]). A connection that is one too many gets no thread.
//!
//! **What a client has been given cannot be taken back** while its process lives: a mapping stays. Permissions count when a pool is granted.

mod backup;
mod connection;
mod exporter;
mod images;
mod imports;
pub mod log;
mod metrics;
mod objects;
mod overview;
mod parcels;
mod per_user;
mod quotas;
mod requests;
mod server;
pub mod service;
mod sessions;

pub use exporter::MetricsAt;
pub use server::{Config, Limits, Pulse, Server, StartError};

/// Arenas of the allocator: threads rarely allocate at the same moment.
const ARENAS: u8 = 4;

/// Sets up a process that will be a daemon: before its threads start. Without it the daemon takes more memory on a machine of many processors.
pub fn prepare_process() {
    // A C library that has no arenas needs none of it.
    let _ = cenote_sys::allocator::limit_arenas(ARENAS);
}
