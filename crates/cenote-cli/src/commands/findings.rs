//! What `check` finds: each finding has a kind, a place and a sentence.

use crate::failure::{Failure, STORE, word};
use crate::output::Out;
use crate::units::count;
use serde_json::{Value, json};

/// One thing that is not as it should be.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// A word for programs: `damage`, `log`, `leak`, ...
    pub(crate) kind: &'static str,
    /// The pool that it is in.
    pub(crate) pool: Option<String>,
    /// Where, if at an address.
    pub(crate) addr: Option<u64>,
    /// A sentence.
    pub(crate) text: String,
}

/// Findings of one check.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    /// Those that were counted and not listed, by kind.
    pub(crate) unlisted: Vec<(&'static str, u64)>,
}

/// Findings of a kind that people are shown.
const SHOWN: usize = 10;

/// The text about findings that are not shown: --all lists some of them, and others are only
/// counted.
fn rest(listed: u64, unlisted: u64) -> Option<String> {
    Some(match (listed, unlisted) {
        (0, 0) => return None,
        (0, unlisted) => format!("and {} more, which are counted and not listed", count(unlisted)),
        (listed, 0) => format!("and {} more; --all lists them", count(listed)),
        (listed, unlisted) => format!(
            "and {} more; --all lists {} of them, the others are counted only",
            count(listed + unlisted),
            count(listed)
        ),
    })
}

impl Findings {
    pub(crate) fn add(
        &mut self,
        kind: &'static str,
        pool: Option<&str>,
        addr: Option<u64>,
        text: String,
    ) {
        self.list.push(Finding { kind, pool: pool.map(str::to_owned), addr, text });
    }

    /// Names the store in the commands that are to be said next.
    pub(crate) fn name_store(&mut self, dir: &str) {
        for finding in &mut self.list {
            finding.text = finding.text.replace(STORE, &word(dir));
        }
    }

    /// Notes that there are more of a kind than are listed.
    pub(crate) fn more(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            self.unlisted.push((kind, count));
        }
    }

    /// Whether there is one of a kind.
    pub(crate) fn has(&self, kind: &str) -> bool {
        self.list.iter().any(|finding| finding.kind == kind)
            || self.unlisted.iter().any(|(unlisted, _)| *unlisted == kind)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.unlisted.is_empty()
    }

    /// All, listed or not.
    pub(crate) fn count(&self) -> u64 {
        self.list.len() as u64 + self.unlisted.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Prints them, the first of each kind or all.
    pub(crate) fn print(&self, all: bool, out: &mut Out) -> Result<(), Failure> {
        let mut kinds: Vec<&'static str> = Vec::new();
        for finding in &self.list {
            if !kinds.contains(&finding.kind) {
                kinds.push(finding.kind);
            }
        }
        for kind in kinds {
            let of_kind: Vec<&Finding> = self.list.iter().filter(|f| f.kind == kind).collect();
            let shown = if all { of_kind.len() } else { SHOWN };
            for finding in of_kind.iter().take(shown) {
                let place = finding
                    .pool
                    .as_ref()
                    .map(|pool| format!("pool \"{pool}\": "))
                    .unwrap_or_default();
                let label = out.bad(&format!("{kind}:"));
                out.line(format_args!("  {label} {place}{}", finding.text))?;
            }
            let unlisted: u64 =
                self.unlisted.iter().filter(|(k, _)| *k == kind).map(|(_, count)| count).sum();
            let listed = of_kind.len().saturating_sub(shown) as u64;
            if let Some(rest) = rest(listed, unlisted) {
                out.line(out.dim(&format!("  {kind}: {rest}")))?;
            }
        }
        Ok(())
    }

    pub(crate) fn as_json(&self) -> Value {
        let list = self.list.iter().map(|finding| {
            json!({
                "kind": finding.kind, "pool": finding.pool, "addr": finding.addr,
                "text": finding.text,
            })
        });
        list.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::rest;

    #[test]
    fn what_is_not_shown_is_promised_by_all_only_if_all_lists_it() {
        assert_eq!(rest(0, 0), None);
        assert_eq!(rest(3, 0).as_deref(), Some("and 3 more; --all lists them"));
        for (listed, part) in
            [(0, "and 5,000 more, which are counted and not"), (990, "--all lists 990 of")]
        {
            let text = rest(listed, 5000).unwrap_or_default();
            assert!(text.contains(part), "{text}");
        }
    }
}
