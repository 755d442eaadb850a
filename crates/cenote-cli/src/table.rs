//! Tables for people: columns as wide as they must be, numbers to the right.

use crate::failure::Failure;
use crate::output::Out;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows that are printed together.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, of as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Prints it, every line after `indent` spaces.
    pub(crate) fn print(&self, out: &mut Out, indent: usize) -> Result<(), Failure> {
        let heading: Vec<String> =
            self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let heading = self.line(&heading, indent);
        let heading = out.dim(&heading);
        out.line(heading)?;
        for row in &self.rows {
            let line = self.line(row, indent);
            out.line(line)?;
        }
        Ok(())
    }

    fn line(&self, cells: &[String], indent: usize) -> String {
        let mut line = " ".repeat(indent);
        for (i, (cell, (name, align))) in cells.iter().zip(&self.columns).enumerate() {
            let widest =
                self.rows.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count()).max();
            let width = widest.unwrap_or(0).max(name.chars().count());
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            if i > 0 {
                line.push_str("  ");
            }
            match align {
                Align::Left => line.extend([cell.as_str(), &padding]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["longer".into(), "9".into()]);
        let lines: Vec<String> = table.rows.iter().map(|row| table.line(row, 2)).collect();
        assert_eq!(lines, ["  a         10", "  longer     9"]);
    }
}
