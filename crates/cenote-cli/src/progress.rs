//! Progress of long work: on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

/// A bar of `len` steps; a hidden one where no user would see it.
pub(crate) fn bar(len: u64, what: &str, json: bool) -> ProgressBar {
    let bar = ProgressBar::new(len);
    if json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        return bar;
    }
    let template = if crate::output::colour_is_welcome() {
        "{prefix:.bold} [{bar:30.cyan}] {human_pos}/{human_len} {msg}"
    } else {
        "{prefix} [{bar:30}] {human_pos}/{human_len} {msg}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
