//! Writes rows: a table for people, one JSON object a line for programs.
//!
//! The JSON keys are `figure`, `row`, `system`, `level`, `threads`, `unit`, `median`, `min`, `max`,
//! `runs`; every figure has them.

use crate::runner::Row;
use std::io::{self, Write};

/// A JSON object of one row, without a line end.
#[must_use]
pub fn json(row: &Row) -> String {
    format!(
        "{{\"figure\":{},\"row\":{},\"system\":{},\"level\":{},\"threads\":{},\"unit\":{},\
         \"median\":{:.3},\"min\":{:.3},\"max\":{:.3},\"runs\":{}}}",
        quote(row.figure),
        quote(&row.row),
        quote(row.system),
        quote(row.level),
        row.threads,
        quote(row.unit),
        row.median,
        row.min,
        row.max,
        row.runs,
    )
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The line above the table. With a reference system there are two columns of ratios to it: of the
/// medians, and of the best runs, which other work on the machine disturbs less.
///
/// # Errors
/// The writer's.
pub fn header(out: &mut impl Write, reference: Option<&str>) -> io::Result<()> {
    write!(
        out,
        "{:<22} {:<22} {:<8} {:>7} {:>10} {:>10} {:>10} {:<10} {:>8} {:>8} {:>9}",
        "row",
        "system",
        "level",
        "threads",
        "median",
        "min",
        "max",
        "unit",
        "flushes",
        "fences",
        "streamed"
    )?;
    if let Some(reference) = reference {
        write!(out, "  of {reference}: median, best")?;
    }
    writeln!(out)
}

/// The lines of one row's cases.
///
/// # Errors
/// The writer's.
pub fn table(out: &mut impl Write, rows: &[Row], reference: Option<&str>) -> io::Result<()> {
    let base = reference.and_then(|reference| rows.iter().find(|row| row.system == reference));
    for row in rows {
        write!(
            out,
            "{:<22} {:<22} {:<8} {:>7} {:>10.*} {:>10.*} {:>10.*} {:<10}",
            row.row,
            row.system,
            row.level,
            row.threads,
            decimals(row.median),
            row.median,
            decimals(row.min),
            row.min,
            decimals(row.max),
            row.max,
            row.unit
        )?;
        match row.counts {
            Some(c) => {
                write!(out, " {:>8.2} {:>8.2} {:>9.1}", c.flushes, c.fences, c.streamed_bytes)?
            }
            None => write!(out, " {:>8} {:>8} {:>9}", "-", "-", "-")?,
        }
        if let Some(base) = base {
            write!(out, "  {:>6.3} {:>6.3}", row.median / base.median, row.best() / base.best())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Digits after the point that tell something of a number of this size.
fn decimals(value: f64) -> usize {
    if value.abs() < 10.0 { 3 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &'static str, median: f64) -> Row {
        Row {
            figure: "f",
            row: "r".into(),
            system,
            level: "power",
            threads: 1,
            unit: "ns",
            median,
            min: 1.0,
            max: 9.0,
            runs: 5,
            more_is_better: false,
            counts: None,
        }
    }

    #[test]
    fn every_row_has_the_ten_keys() {
        let text = json(&row("a \"quoted\" one", 2.5));
        assert_eq!(
            text,
            "{\"figure\":\"f\",\"row\":\"r\",\"system\":\"a \\\"quoted\\\" one\",\
             \"level\":\"power\",\"threads\":1,\"unit\":\"ns\",\
             \"median\":2.500,\"min\":1.000,\"max\":9.000,\"runs\":5}"
        );
    }

    #[test]
    fn ratios_are_to_the_reference() {
        let mut out = Vec::new();
        table(&mut out, &[row("ours", 3.0), row("theirs", 6.0)], Some("theirs"))
            .expect("a vector takes all");
        let text = String::from_utf8_lossy(&out).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].ends_with(" 0.500  1.000") && lines[1].ends_with(" 1.000  1.000"),
            "{text}"
        );
    }
}
