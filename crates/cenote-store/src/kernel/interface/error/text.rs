//! Parts of the texts of errors.

use crate::kernel::interface::report::Damage;
use cenote_layout::header::HeaderError;
use core::fmt;

/// What to do about a file that is no superblock.
pub(crate) fn advice(error: &HeaderError) -> &'static str {
    match error {
        HeaderError::Magic { .. } | HeaderError::Truncated { .. } => {
            "; check the path, or restore the whole store from one copy (`cenote backup` makes one)"
        }
        _ => "",
    }
}

pub(crate) struct ListedDamage<'a>(pub(crate) &'a [Damage]);

impl fmt::Display for ListedDamage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, damage) in self.0.iter().take(4).enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{damage}")?;
        }
        if self.0.len() > 4 {
            write!(f, "; and {} more", self.0.len() - 4)?;
        }
        Ok(())
    }
}

pub(crate) fn plural_pages(count: u64) -> String {
    if count == 1 { "1 page".into() } else { format!("{count} pages") }
}

pub(crate) fn of_processes(pids: &[u32], waited: core::time::Duration) -> String {
    format!("stayed in one transaction for {} ms: {}", waited.as_millis(), joined(pids))
}

pub(crate) fn joined(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}
