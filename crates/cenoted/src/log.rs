//! What the daemon says while it runs: lines on standard error.
//!
//! | where standard error goes | a line |
//! | --- | --- |
//! | a terminal | time, level in colour, message, fields |
//! | the journal | `<priority>`, which the journal takes off and files by; message, fields |
//! | elsewhere | `cenoted:`, level, message, fields |
//!
//! **No line has** contents of memory, of logs or of objects, or keys. Text that a client chose
//! (names of pools, of its program) is a field in quotes, and no line has a control character: a
//! client cannot write lines of its own.
//!
//! **A client cannot flood the log.** Lines that a client can cause are limited, by topic, to
//! `LINES` in `WINDOW`; a later line says how many were left out.

use std::fmt;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Lines of one topic in one window.
const LINES: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(5);

/// Where standard error goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Terminal,
    Journal,
    Plain,
}

/// Begins to log on standard error, at this level and more important ones; `None`: nothing.
pub fn begin(level: Option<Level>) {
    let style = match std::io::stderr().is_terminal() {
        true => Style::Terminal,
        false if goes_to_journal() => Style::Journal,
        false => Style::Plain,
    };
    let Some(level) = level else { return };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| AsFarAsItGoes)
        .event_format(LogLine(style))
        .finish();
    // A test may have set another one before; then that one stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Standard error, as far as it takes anything: a log that cannot be written (a full disk, a reader
/// that is gone) ends no thread.
struct AsFarAsItGoes;

impl std::io::Write for AsFarAsItGoes {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = std::io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether standard error is the stream that the environment says leads to the journal: device and
/// number of the file.
fn goes_to_journal() -> bool {
    let said = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let is =
        rustix::fs::fstat(std::io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    is.is_ok_and(|is| is == said)
}

/// One line.
struct LogLine(Style);

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = String::new();
        context.field_format().format_fields(Writer::new(&mut said), event)?;
        let (name, colour, priority) = match *event.metadata().level() {
            Level::ERROR => ("error", 31, 3),
            Level::WARN => ("warning", 33, 4),
            Level::INFO => ("info", 32, 6),
            Level::DEBUG => ("debug", 34, 7),
            Level::TRACE => ("trace", 35, 7),
        };
        match self.0 {
            Style::Terminal => {
                SystemTime.format_time(&mut writer)?;
                write!(writer, " \x1b[{colour}m{name:>7}\x1b[0m ")?;
            }
            Style::Journal => write!(writer, "<{priority}>")?,
            Style::Plain => write!(writer, "cenoted: {name}: ")?,
        }
        writeln!(writer, "{}", one_line(&said))
    }
}

/// Without what would end the line, or do something to a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// What lines are about that a client can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Connections,
    Grants,
    Ends,
    SetAside,
    Refusals,
    Malformed,
    Failures,
}

const TOPICS: usize = 7;

#[derive(Debug, Default)]
struct RateWindow {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

/// Keeps lines back.
#[derive(Debug, Default)]
pub(crate) struct Quiet([Mutex<RateWindow>; TOPICS]);

impl Quiet {
    /// Whether a line about this may be said now; and how many were not, in the window before.
    pub(crate) fn admit(&self, topic: Topic, now: Instant) -> (bool, u64) {
        let Some(window) = self.0.get(topic as usize) else { return (true, 0) };
        let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if window.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            left_out = window.left_out;
            *window = RateWindow { since: Some(now), lines: 0, left_out: 0 };
        }
        if window.lines < LINES {
            window.lines += 1;
            return (true, left_out);
        }
        window.left_out += 1;
        (false, left_out)
    }
}

/// Says a line about something that a client can cause, unless there have been many.
macro_rules! say {
    ($shared:expr, $topic:ident, $level:ident, $($said:tt)*) => {
        if tracing::enabled!(tracing::Level::$level) {
            let topic = $crate::log::Topic::$topic;
            let (may, left_out) = $shared.quiet.admit(topic, std::time::Instant::now());
            if left_out > 0 {
                tracing::warn!("{left_out} lines about {topic:?} were left out");
            }
            if may {
                tracing::event!(tracing::Level::$level, $($said)*);
            }
        }
    };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_noise_is_left_out_and_counted() {
        let (quiet, begin) = (Quiet::default(), Instant::now());
        for line in 0..1000 {
            assert_eq!(quiet.admit(Topic::Malformed, begin), (line < LINES, 0));
        }
        assert_eq!(quiet.admit(Topic::Grants, begin), (true, 0), "another topic");
        assert_eq!(quiet.admit(Topic::Malformed, begin + WINDOW), (true, 1000 - u64::from(LINES)));
        assert_eq!(quiet.admit(Topic::Malformed, begin + WINDOW), (true, 0));
    }

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(one_line("a\nb\x1b[31mc \u{9b}é"), "a\\nb\\u{1b}[31mc \\u{9b}é");
    }
}
