//! Fuzz targets: each reader of bytes that it did not write must take any bytes.
//!
//! A target is a function of a byte string, [`FuzzTarget::run`]. It reads the string as a program
//! ([`Input`]): how to make a valid superblock, log or catalog, what to damage in it, and whether
//! to put checksums right again, so that code behind the checksums is reached. It gives the result
//! to the production readers and asserts what must hold; a failure is a panic.
//!
//! Two drivers call the targets: the program `cenote-fuzz` of this crate, with random strings and a
//! stable compiler; and the coverage-guided drivers under `fuzz/`, which need another tool.

mod archive;
mod at_rest;
mod catalog;
/// The store's reader of catalog files. It is private to that crate, and is compiled here from the
/// same source.
#[allow(dead_code)]
#[path = "../../cenote-store/src/kernel/catalog/file.rs"]
mod file;
pub mod forge;
mod header;
mod image;
mod input;
mod journal;
mod log;
mod logged_image;
mod message;
mod wear_image;
mod world;

/// Where `file` expects it.
mod kernel {
    pub(crate) mod interface {
        pub(crate) mod report {
            pub(crate) use cenote_store::{Damage, DamageEffect};
        }
    }
}

pub use input::{Input, Random};

/// What can be fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuzzTarget {
    /// Superblocks, puddle headers, log headers, log-space headers and entries.
    Header,
    /// Logs: inspection and replay, over memory that notices every stray write.
    Log,
    /// Catalog files.
    Catalog,
    /// Messages between a daemon and its clients.
    Message,
    /// Headers, pages and hash trees of protection at rest.
    AtRest,
    /// Journals of psyncs.
    Journal,
    /// Archives of pools.
    Archive,
    /// Images of puddles that have moved, with types and ranges that no manifest vouches for.
    Image,
    /// Metadata of logged heaps in puddles that no heap uses.
    LoggedImage,
    /// Headers of wear heaps in puddles that no heap uses.
    WearImage,
}

impl FuzzTarget {
    /// All targets.
    pub const ALL: [Self; 10] = [
        Self::Header,
        Self::Log,
        Self::Catalog,
        Self::Message,
        Self::AtRest,
        Self::Journal,
        Self::Archive,
        Self::Image,
        Self::LoggedImage,
        Self::WearImage,
    ];

    /// The target's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Log => "log",
            Self::Catalog => "catalog",
            Self::Message => "message",
            Self::AtRest => "at-rest",
            Self::Journal => "journal",
            Self::Archive => "archive",
            Self::Image => "image",
            Self::LoggedImage => "logged-image",
            Self::WearImage => "wear-image",
        }
    }

    /// The target with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Runs the target once.
    ///
    /// # Panics
    /// If a reader does something that it must not do: that is the finding.
    pub fn run(self, data: &[u8]) {
        let mut input = Input::new(data);
        match self {
            Self::Header => header::run(&mut input),
            Self::Log => log::run(&mut input),
            Self::Catalog => catalog::run(&mut input),
            Self::Message => message::run(&mut input),
            Self::AtRest => at_rest::run(&mut input),
            Self::Journal => journal::run(&mut input),
            Self::Archive => archive::run(&mut input),
            Self::Image => image::run(&mut input),
            Self::LoggedImage => logged_image::run(&mut input),
            Self::WearImage => wear_image::run(&mut input),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(target: FuzzTarget, count: u64) {
        for seed in 0..count {
            target.run(&Random(seed).bytes(512));
        }
        target.run(&[]);
    }

    #[test]
    fn headers_take_any_bytes() {
        run(FuzzTarget::Header, 3000);
    }

    #[test]
    fn logs_take_any_bytes_and_refused_ones_change_nothing() {
        run(FuzzTarget::Log, 3000);
    }

    #[test]
    fn messages_take_any_bytes() {
        run(FuzzTarget::Message, 3000);
    }

    #[test]
    fn protections_take_any_bytes_and_show_only_what_was_sealed() {
        run(FuzzTarget::AtRest, 2000);
    }

    #[test]
    fn journals_take_any_bytes() {
        run(FuzzTarget::Journal, 1000);
    }

    #[test]
    fn archives_take_any_bytes() {
        run(FuzzTarget::Archive, 3000);
    }

    #[test]
    fn images_take_any_bytes_types_and_ranges() {
        run(FuzzTarget::Image, 1500);
    }

    #[test]
    fn damaged_metadata_of_logged_heaps_are_named_or_mean_nothing() {
        run(FuzzTarget::LoggedImage, 1500);
    }

    #[test]
    fn damaged_headers_of_wear_heaps_cost_the_blocks_that_they_are_of() {
        run(FuzzTarget::WearImage, 1500);
    }

    #[test]
    fn catalogs_take_any_bytes() {
        run(FuzzTarget::Catalog, 3000);
    }
}
