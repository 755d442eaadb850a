//! The command line.

use cenoted::{Config, MetricsAt};
use clap::{Args, Parser, ValueHint};
use std::path::PathBuf;
use tracing::Level;

const AFTER: &str = "\
If a service manager passes the socket (LISTEN_FDS), leave out --socket. With Type=notify the \
daemon tells the service manager when it serves clients.

Exit status:
    0  ended by a signal
    1  the daemon could not start, or could not go on: start it again, and clients go on
    2  wrong arguments";

/// Keep a store of persistent memory for the programs of a machine
///
/// The daemon keeps the store in DIR, and serves programs that connect to PATH. If DIR is missing
/// or empty, the daemon makes the store. Other users cannot open the store's files: the owner,
/// group and mode of a pool decide which users may read or write it. SIGTERM and SIGINT end the
/// daemon. It may also be killed at any time: clients go on with their mappings, and with their
/// sessions when the next daemon runs.
#[derive(Debug, Parser)]
#[command(name = "cenoted", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Arguments {
    /// The store's directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// The socket to which clients connect: a path of less than 108 bytes
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
    /// Serve metrics, in Prometheus' text format, at a UNIX socket (a path with a / in it) or at a
    /// loopback address with a port. If not given, only clients can read metrics (`cenote top`)
    #[arg(long, value_name = "PATH|ADDR", value_parser = MetricsAt::parse)]
    metrics: Option<MetricsAt>,
    /// What to log on standard error: off, error, warn, info, debug (connections, grants, refusals)
    /// or trace. Default: the environment variable CENOTED_LOG, or info
    #[arg(long, value_name = "LEVEL", value_parser = parse_level)]
    log: Option<LogLevel>,
    #[command(flatten)]
    limits: LimitsOfClients,
    /// Most bytes of spare puddles, which make the creation and growth of pools fast
    #[arg(long, value_name = "N", default_value_t = 32 << 20)]
    spare_bytes: u64,
}

/// A daemon without clients serves nothing.
fn parse_clients(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "use a number of 1 or more".into())
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitsOfClients {
    /// Most connections, and most sessions of running programs without a connection
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = parse_clients)]
    clients: usize,
    /// Most connections, and most such sessions, of one user (the superuser excepted)
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_clients)]
    clients_per_user: usize,
    /// Most puddles that one client may make
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    client_puddles: u64,
    /// Most bytes of these puddles; if not given, as far as there is space
    #[arg(long, value_name = "N")]
    client_bytes: Option<u64>,
    /// Most puddles that one user (the superuser excepted) may have: in its pools and objects, and
    /// as logs of its programs; no limit if not given
    #[arg(long, value_name = "N")]
    user_puddles: Option<u64>,
    /// Most bytes of these puddles
    #[arg(long, value_name = "N")]
    user_bytes: Option<u64>,
    /// Most types that the programs of one user (also of the superuser) may register while this
    /// daemon runs; the store keeps types for good
    #[arg(long, value_name = "N", default_value_t = 1 << 16)]
    user_types: u64,
    /// Most bytes of the descriptions of these types
    #[arg(long, value_name = "N", default_value_t = 64 << 20)]
    user_type_bytes: u64,
}

/// A level, or none at all.
#[derive(Clone, Copy, Debug)]
struct LogLevel(Option<Level>);

fn parse_level(text: &str) -> Result<LogLevel, String> {
    match text {
        "off" => Ok(LogLevel(None)),
        "warning" => Ok(LogLevel(Some(Level::WARN))),
        text => text
            .parse()
            .map(|level| LogLevel(Some(level)))
            .map_err(|_| "use off, error, warn, info, debug or trace".into()),
    }
}

impl Arguments {
    /// What is logged; `None`: nothing.
    ///
    /// # Errors
    /// The environment says what is no level.
    pub(crate) fn log(&self) -> Result<Option<Level>, String> {
        let level = match (self.log, std::env::var("CENOTED_LOG")) {
            (Some(level), _) => level,
            (None, Err(_)) => LogLevel(Some(Level::INFO)),
            (None, Ok(text)) => {
                parse_level(&text).map_err(|why| format!("CENOTED_LOG is {text:?}: {why}"))?
            }
        };
        Ok(level.0)
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(&self.store, self.socket.clone().unwrap_or_default());
        config.metrics = self.metrics.clone();
        config.limits.connections = self.limits.clients;
        config.limits.connections_per_user = self.limits.clients_per_user;
        config.limits.puddles = self.limits.client_puddles;
        config.limits.bytes = self.limits.client_bytes.unwrap_or(u64::MAX);
        config.limits.user_puddles = self.limits.user_puddles.unwrap_or(u64::MAX);
        config.limits.user_bytes = self.limits.user_bytes.unwrap_or(u64::MAX);
        config.limits.user_types = self.limits.user_types;
        config.limits.user_type_bytes = self.limits.user_type_bytes;
        config.options.spare_bytes_max = self.spare_bytes;
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_fits_together() {
        Arguments::command().debug_assert();
        let parsed = Arguments::try_parse_from(["cenoted", "--store", "/s", "--client-bytes", "7"])
            .expect("parse");
        let config = parsed.config();
        assert_eq!((config.limits.bytes, config.limits.puddles), (7, 1 << 20));
        assert!(config.socket.as_os_str().is_empty() && config.metrics.is_none());
        let defaults = cenoted::Limits::default();
        assert_eq!(
            (config.limits.connections, config.limits.connections_per_user),
            (defaults.connections, defaults.connections_per_user)
        );
        for wrong in [
            &["cenoted"][..],
            &["cenoted", "--store", "/s", "--metrics", "0.0.0.0:1"],
            &["cenoted", "--store", "/s", "--log", "loud"],
        ] {
            assert!(Arguments::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
