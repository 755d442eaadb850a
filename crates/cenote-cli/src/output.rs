//! Standard output: lines for people, in colour on a terminal, or JSON for programs.

use crate::failure::Failure;
use crate::stop::Stop;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};

/// Standard output of one command.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    colour: bool,
    /// Whether to stop, for a command that prints much.
    stop: Option<Stop>,
    writer: BufWriter<Stdout>,
}

impl Out {
    /// Standard output; `json`: people get nothing.
    pub(crate) fn new(json: bool) -> Self {
        let colour = !json && io::stdout().is_terminal() && colour_is_welcome();
        Self { json, colour, stop: None, writer: BufWriter::new(io::stdout()) }
    }

    /// From now on a line is an error once the user has asked to stop.
    pub(crate) fn heed(&mut self, stop: Stop) {
        self.stop = Some(stop);
    }

    fn go_on(&self) -> Result<(), Failure> {
        self.stop.as_ref().map_or(Ok(()), Stop::check)
    }

    /// Whether the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Failure> {
        if !self.json {
            self.go_on()?;
            writeln!(self.writer, "{line}")?;
        }
        Ok(())
    }

    /// A line `label   value` for people; further lines of the value are indented.
    pub(crate) fn field(&mut self, label: &str, value: impl fmt::Display) -> Result<(), Failure> {
        let label = self.dim(&format!("{label:<12}"));
        self.labelled(&label, value)
    }

    /// The same for what is wrong.
    pub(crate) fn wrong(&mut self, label: &str, value: impl fmt::Display) -> Result<(), Failure> {
        let label = self.bad(&format!("{label:<12}"));
        self.labelled(&label, value)
    }

    fn labelled(&mut self, label: &str, value: impl fmt::Display) -> Result<(), Failure> {
        let mut lines = wrapped(&value.to_string(), 66).into_iter();
        self.line(format_args!("{label} {}", lines.next().unwrap_or_default()))?;
        for line in lines {
            self.line(format_args!("{:13}{line}", ""))?;
        }
        Ok(())
    }

    /// An object for programs, on a line of its own.
    pub(crate) fn object(&mut self, value: &Value) -> Result<(), Failure> {
        if self.json {
            self.go_on()?;
            writeln!(self.writer, "{value}")?;
        }
        Ok(())
    }

    /// Text as it is, for both.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.writer.write_all(bytes)?)
    }

    /// Hands everything on to the system.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        Ok(self.writer.flush()?)
    }

    fn styled(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A heading.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    /// Of less importance.
    pub(crate) fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    /// As it should be.
    pub(crate) fn good(&self, text: &str) -> String {
        self.styled("32", text)
    }

    /// To be known.
    pub(crate) fn warn(&self, text: &str) -> String {
        self.styled("33", text)
    }

    /// Wrong.
    pub(crate) fn bad(&self, text: &str) -> String {
        self.styled("31;1", text)
    }
}

/// Whether the user may want colour: <https://no-color.org>, and terminals that have none.
pub(crate) fn colour_is_welcome() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Lines of at most `width` characters, broken at spaces; longer words stay whole.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            } else if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// Asks a question on the terminal. `false` unless the answer is yes.
pub(crate) fn asked(question: &str) -> Result<bool, Failure> {
    let mut terminal = io::stderr();
    let _ = write!(terminal, "{question} [y/N] ");
    let _ = terminal.flush();
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|e| Failure::Failed(format!("cannot read the answer: {e}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Whether there is a user to ask.
pub(crate) fn a_user_is_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_spaces_and_nothing_is_lost() {
        let text = "one two three fourteen-letters x";
        let lines = wrapped(text, 8);
        assert!(lines.iter().all(|line| line.len() <= 8 || !line.contains(' ')), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrapped("", 5), [""]);
    }
}
