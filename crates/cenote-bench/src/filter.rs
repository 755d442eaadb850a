//! Which systems and cases of a figure run.

/// Which rows are wanted: those whose names begin so.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub(crate) row: Option<String>,
    pub(crate) system: Option<String>,
    pub(crate) level: Option<String>,
}

impl Filter {
    /// Whether this row is wanted.
    #[must_use]
    pub fn admits(&self, row: &str, system: &str, level: &str) -> bool {
        begins(row, self.row.as_deref())
            && begins(system, self.system.as_deref())
            && self.admits_level(level)
    }

    /// Whether rows of this level can be wanted.
    #[must_use]
    pub fn admits_level(&self, level: &str) -> bool {
        begins(level, self.level.as_deref())
    }
}

fn begins(name: &str, wanted: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| name.starts_with(wanted))
}
