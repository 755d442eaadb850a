//! Kept psyncs in memory: lines for primaries that could not be written ([`crate::kept`]).

use crate::kernel::puddles::puddle::{primary_name, text};
use crate::kernel::puddles::verify::RESTORE;
use crate::kernel::store::Control;
use crate::kernel::store::extensions::Extension;
use crate::primaries::Patches;
use cenote_layout::id::Uuid;
use cenote_layout::kept::runs;
use std::collections::BTreeMap;

/// How the name of a kept file ends.
const ENDING: &str = ".kept";

/// The kept files of a store: by puddle, the runs, or why they cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Kept(pub(crate) BTreeMap<Uuid, Result<Vec<u8>, String>>);

impl Extension for Kept {}

pub(crate) fn name_of(puddle: Uuid) -> String {
    format!("{}{ENDING}", text(&primary_name(puddle)))
}

/// The puddle of a kept file, by its name in the directory of primaries.
pub(crate) fn puddle_of(name: &str) -> Option<Uuid> {
    Uuid::parse(name.strip_suffix(ENDING)?)
}

impl Control {
    pub(crate) fn kept(&self) -> &BTreeMap<Uuid, Result<Vec<u8>, String>> {
        &self.parts.get::<Kept>().0
    }

    pub(crate) fn kept_mut(&mut self) -> &mut BTreeMap<Uuid, Result<Vec<u8>, String>> {
        &mut self.parts.get_mut::<Kept>().0
    }

    /// The kept files: of which puddle, their names, and what they hold.
    pub(crate) fn kept_files(
        &self,
    ) -> impl Iterator<Item = (Uuid, String, &Result<Vec<u8>, String>)> {
        self.kept().iter().map(|(puddle, kept)| (*puddle, name_of(*puddle), kept))
    }

    /// Why a puddle cannot be used although its file is whole. A reader lays the runs over it.
    pub(crate) fn kept_problem(&self, puddle: Uuid, writable: bool) -> Option<String> {
        match self.kept().get(&puddle)? {
            Ok(_) if !writable => None,
            Ok(_) => Some(format!(
                "psyncs of it wait in {}, because its file was damaged: open the store for \
                 writing again",
                name_of(puddle)
            )),
            Err(why) => {
                Some(format!("psyncs of it waited in a file that is damaged: {why}; {RESTORE}"))
            }
        }
    }

    /// The runs as a reader lays them over primaries.
    pub(crate) fn kept_patches(&self) -> Patches {
        let whole =
            self.kept().iter().filter_map(|(puddle, kept)| Some((*puddle, kept.as_ref().ok()?)));
        let list =
            |all: &Vec<u8>| runs(all).flatten().map(|(at, bytes)| (at, bytes.to_vec())).collect();
        whole.map(|(puddle, all)| (puddle, list(all))).collect()
    }
}
