//! The states that a crash may leave, and images: concrete forms of one state.
//!
//! A [`CrashState`] is the model at one moment: what is certainly durable, and a list of undecided
//! *units*, each with its possible values. An [`Image`] is one choice for every unit. Invariants:
//!
//! * Value 0 of every unit is the durable one: the choice of all zeros is the medium that has lost
//!   all that can be lost. Values of a unit differ from each other: different choices are different
//!   states.
//! * An image shares every page with the state except those that its choice changes: making one
//!   costs a few microseconds for files of any size.
//! * Names that no directory leads to, and files that no name leads to, are not in an image.
//! * Pages without space are no unit: an image of a loss of power has every hole that it may have,
//!   which is the worst state that it may be in.

mod image;

pub use image::Image;
pub(crate) use image::ImageEntry;

use super::content::{Content, SECTOR};
use super::model::{Binding, File, Holes, Inode, MediumModel, NameStep, Names, directory_of};
use super::options::Origin;
use super::random::mix;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What kind of crash an image is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashKind {
    /// The process died: memory mappings and the page cache hold everything it did; the boot id
    /// stays.
    Process,
    /// Power was lost: what was undecided went either way; the boot id is another one.
    Power,
}

/// Values that one unit may have; the first is the durable one.
enum Values {
    Words {
        word: u64,
        values: Vec<u64>,
    },
    Sectors {
        sector: u64,
        later: Vec<Arc<[u8; SECTOR]>>,
    },
    Lengths(Vec<u64>),
    /// Whether the change of names with this number happened.
    Name(usize),
}

/// Where a unit of a [`CrashState`] lies. A file that has no name any more is "".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPlace<'a> {
    /// 8 bytes of a mapped file.
    Word {
        /// The file.
        file: &'a str,
        /// In bytes.
        offset: u64,
    },
    /// 512 bytes of a file.
    Sector {
        /// The file.
        file: &'a str,
        /// In bytes.
        offset: u64,
    },
    /// The length of a file.
    Length {
        /// The file.
        file: &'a str,
    },
    /// A creation, renaming or removal.
    Name,
}

/// One thing that a crash decides independently of all others.
struct Unit {
    /// The file; 0 for changes of names.
    inode: Inode,
    values: Values,
    /// Which value is the latest.
    latest: usize,
}

impl Unit {
    fn alternatives(&self) -> usize {
        match &self.values {
            Values::Words { values, .. } => values.len(),
            Values::Sectors { later, .. } => later.len() + 1,
            Values::Lengths(values) => values.len(),
            Values::Name(_) => 2,
        }
    }

    /// Units that tend to share a fate: those of a cache line, or of a page of a file.
    fn group(&self) -> (Inode, u64) {
        match &self.values {
            Values::Words { word, .. } => (self.inode, word / 8),
            Values::Sectors { sector, .. } => (self.inode, (1 << 62) | (sector / 8)),
            Values::Lengths(_) => (self.inode, u64::MAX),
            Values::Name(step) => (0, *step as u64),
        }
    }
}

/// Drops values that occur again later, except the first; returns where the last one went.
fn distinct<T: PartialEq + Clone>(
    floor: T,
    versions: impl DoubleEndedIterator<Item = T>,
) -> (Vec<T>, usize) {
    let mut values: Vec<T> = Vec::new();
    let mut latest = None;
    for version in versions.rev() {
        latest.get_or_insert_with(|| version.clone());
        if version != floor && !values.contains(&version) {
            values.push(version);
        }
    }
    values.push(floor);
    values.reverse();
    let latest = latest.and_then(|value| values.iter().position(|v| *v == value)).unwrap_or(0);
    (values, latest)
}

/// A file without its history.
struct Ends {
    floor: Arc<Content>,
    latest: Arc<Content>,
    floor_len: u64,
    latest_len: u64,
    holes: Holes,
    holes_at_worst: Holes,
}

/// Everything that a crash at one moment of a history may leave.
pub struct CrashState {
    files: BTreeMap<Inode, Ends>,
    names: Names,
    latest_names: Names,
    /// A name of each file, made when it is first asked for.
    file_names: OnceLock<HashMap<Inode, Arc<str>>>,
    steps: Vec<NameStep>,
    units: Vec<Unit>,
    event: usize,
    note: u64,
    label: Option<Arc<str>>,
    origin: Origin,
}

impl CrashState {
    /// The state of `model` after `event` events of a history that is set up as `origin`.
    pub(crate) fn new(model: &MediumModel, event: usize, origin: Origin) -> Self {
        let (units, steps) = Self::undecided(model);
        Self { units, steps, ..Self::of_processes(model, event, origin) }
    }

    /// What a loss of power decides.
    fn undecided(model: &MediumModel) -> (Vec<Unit>, Vec<NameStep>) {
        let mut units = Vec::new();
        let mut steps = Vec::new();
        for (number, change) in model.name_changes.iter().enumerate() {
            steps.push(change.what.clone());
            units.push(Unit { inode: 0, values: Values::Name(number), latest: 1 });
        }
        for (&inode, file) in &model.files {
            let (lengths, latest) = distinct(
                file.lengths.first().copied().unwrap_or(0),
                file.lengths.iter().skip(1).copied(),
            );
            if lengths.len() > 1 {
                units.push(Unit { inode, values: Values::Lengths(lengths), latest });
            }
            for (&number, sector) in &file.sectors {
                let floor = Arc::new(file.floor.sector(number));
                let (mut values, latest) = distinct(floor, sector.versions.iter().cloned());
                if values.len() > 1 {
                    let later = values.split_off(1);
                    units.push(Unit {
                        inode,
                        values: Values::Sectors { sector: number, later },
                        latest,
                    });
                }
            }
            for (&number, word) in &file.words {
                let (values, latest) =
                    distinct(file.floor.word(number), word.versions.iter().copied());
                if values.len() > 1 {
                    units.push(Unit {
                        inode,
                        values: Values::Words { word: number, values },
                        latest,
                    });
                }
            }
        }
        (units, steps)
    }

    /// The same without what a loss of power decides: one image of that, with everything lost, and
    /// [`CrashState::image_process`].
    pub(crate) fn of_processes(model: &MediumModel, event: usize, origin: Origin) -> Self {
        let ends = |(&inode, file): (&Inode, &File)| {
            let (floor, latest) = (Arc::clone(&file.floor), Arc::clone(&file.latest));
            let floor_len = file.lengths.first().copied().unwrap_or(0);
            let (holes, holes_at_worst) = (Arc::clone(&file.holes), file.holes_at_worst());
            (
                inode,
                Ends {
                    floor,
                    latest,
                    floor_len,
                    latest_len: file.latest_len(),
                    holes,
                    holes_at_worst,
                },
            )
        };
        let files = model.files.iter().map(ends).collect();
        Self {
            files,
            names: model.names.clone(),
            latest_names: model.latest_names.clone(),
            file_names: OnceLock::new(),
            steps: Vec::new(),
            units: Vec::new(),
            event,
            note: model.note,
            label: model.label.clone(),
            origin,
        }
    }

    /// Number of events that happened before the crash.
    #[must_use]
    pub fn event(&self) -> usize {
        self.event
    }

    /// The last number that the test gave to [`SimMedium::note`](super::SimMedium::note) before the
    /// crash; 0 if none.
    #[must_use]
    pub fn note(&self) -> u64 {
        self.note
    }

    /// The last label that the test gave to
    /// [`SimMedium::crash_point`](super::SimMedium::crash_point).
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Number of undecided units: words, sectors, lengths and changes of names.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Number of values that a unit may have, at least 2; 0 if there is no such unit.
    #[must_use]
    pub fn alternatives(&self, unit: usize) -> usize {
        self.units.get(unit).map_or(0, Unit::alternatives)
    }

    /// Which of its values is the latest one of a unit; value 0 is the durable one. They may be the
    /// same.
    #[must_use]
    pub fn latest(&self, unit: usize) -> usize {
        self.units.get(unit).map_or(0, |unit| unit.latest)
    }

    /// Number of images of a loss of power, saturating.
    #[must_use]
    pub fn images(&self) -> u64 {
        self.units
            .iter()
            .fold(1, |product: u64, unit| product.saturating_mul(unit.alternatives() as u64))
    }

    /// A number that units share which a crash would usually decide alike: a cache line, a page.
    pub(super) fn group(&self, unit: usize) -> u64 {
        let (inode, part) = self.units[unit].group();
        mix(part ^ mix(u64::from(inode)))
    }

    /// Whether the file is there as a process sees it; then `buffer` gets its bytes from `offset`
    /// on, zeros beyond its end.
    #[must_use]
    pub fn read_latest(&self, file: &str, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(Binding::File(inode)) = self.latest_names.get(file) else { return false };
        let Some(file) = self.files.get(inode) else { return false };
        file.latest.read(offset, buffer);
        true
    }

    /// Values of a unit that is a word; empty for others.
    #[must_use]
    pub fn words(&self, unit: usize) -> &[u64] {
        match self.units.get(unit).map(|unit| &unit.values) {
            Some(Values::Words { values, .. }) => values,
            _ => &[],
        }
    }

    /// The first of a file's latest names, or of those that it had.
    fn file_name(&self, inode: Inode) -> Option<&str> {
        let names = self.file_names.get_or_init(|| {
            let mut by_file = HashMap::new();
            for (name, binding) in self.latest_names.iter().chain(&self.names) {
                if let Binding::File(inode) = binding {
                    by_file.entry(*inode).or_insert_with(|| Arc::clone(name));
                }
            }
            by_file
        });
        names.get(&inode).map(|name| &**name)
    }

    /// Where a unit lies, for tests that decide several units together.
    #[must_use]
    pub fn place(&self, unit: usize) -> Option<CrashPlace<'_>> {
        let unit = self.units.get(unit)?;
        let file = || self.file_name(unit.inode).unwrap_or_default();
        Some(match &unit.values {
            Values::Words { word, .. } => CrashPlace::Word { file: file(), offset: word * 8 },
            Values::Sectors { sector, .. } => {
                CrashPlace::Sector { file: file(), offset: sector * SECTOR as u64 }
            }
            Values::Lengths(_) => CrashPlace::Length { file: file() },
            Values::Name(_) => CrashPlace::Name,
        })
    }

    /// What a unit is, for messages: file, offset and values.
    #[must_use]
    pub fn describe(&self, unit: usize) -> String {
        let Some(unit) = self.units.get(unit) else { return String::from("no such unit") };
        let file = self
            .file_name(unit.inode)
            .map_or_else(|| format!("file {}", unit.inode), str::to_owned);
        match &unit.values {
            Values::Words { word, values } => format!("{file}+{:#x}: word {values:x?}", word * 8),
            Values::Sectors { sector, later, .. } => {
                format!(
                    "{file}+{:#x}: sector, {} later versions",
                    sector * SECTOR as u64,
                    later.len()
                )
            }
            Values::Lengths(values) => format!("{file}: length {values:?}"),
            Values::Name(step) => match &self.steps[*step] {
                NameStep::Bind(name, _) => format!("create {name}"),
                NameStep::Rename(from, to, _) => format!("rename {from} to {to}"),
                NameStep::Unbind(name) => format!("remove {name}"),
            },
        }
    }

    /// The image of a loss of power in which unit `u` has value `choice(u, alternatives(u))`. Value
    /// 0 is the durable one; a value that is too high counts as the last.
    pub fn image(&self, choice: &mut dyn FnMut(usize, usize) -> usize) -> Image {
        let mut names = None;
        let mut touched: BTreeMap<Inode, (Content, u64)> = BTreeMap::new();
        let mut picks = Vec::with_capacity(self.units.len());
        for (number, unit) in self.units.iter().enumerate() {
            let alternatives = unit.alternatives();
            let pick = choice(number, alternatives).min(alternatives - 1);
            picks.push(u16::try_from(pick).unwrap_or(u16::MAX));
            if pick == 0 {
                continue;
            }
            if let Values::Name(step) = unit.values {
                self.steps[step].apply(names.get_or_insert_with(|| self.names.clone()));
                continue;
            }
            let (content, len) = touched.entry(unit.inode).or_insert_with(|| {
                let file = &self.files[&unit.inode];
                (Content::clone(&file.floor), file.floor_len)
            });
            match &unit.values {
                Values::Words { word, values } => content.set_word(*word, values[pick]),
                Values::Sectors { sector, later, .. } => {
                    content.write(sector * SECTOR as u64, later[pick - 1].as_slice());
                }
                Values::Lengths(values) => *len = values[pick],
                Values::Name(_) => {}
            }
        }
        let mut touched: BTreeMap<Inode, (Arc<Content>, u64)> = touched
            .into_iter()
            .map(|(inode, (content, len))| (inode, (Arc::new(content), len)))
            .collect();
        self.assemble(
            names.as_ref().unwrap_or(&self.names),
            CrashKind::Power,
            picks,
            |inode, file| {
                touched.remove(&inode).unwrap_or_else(|| (Arc::clone(&file.floor), file.floor_len))
            },
        )
    }

    /// The image of the values that the units have in `picks`; see [`Image::picks`]. Missing ones
    /// are durable.
    #[must_use]
    pub fn image_of(&self, picks: &[u16]) -> Image {
        self.image(&mut |unit, _| picks.get(unit).map_or(0, |pick| usize::from(*pick)))
    }

    /// A loss of power in which everything is lost that can be.
    #[must_use]
    pub fn image_oldest(&self) -> Image {
        self.image(&mut |_, _| 0)
    }

    /// A loss of power in which nothing is lost.
    #[must_use]
    pub fn image_latest(&self) -> Image {
        self.image(&mut |unit, _| self.units[unit].latest)
    }

    /// What the next process finds when only the process died.
    #[must_use]
    pub fn image_process(&self) -> Image {
        self.assemble(&self.latest_names, CrashKind::Process, Vec::new(), |_, file| {
            (Arc::clone(&file.latest), file.latest_len)
        })
    }

    fn assemble(
        &self,
        names: &Names,
        kind: CrashKind,
        picks: Vec<u16>,
        mut file_of: impl FnMut(Inode, &Ends) -> (Arc<Content>, u64),
    ) -> Image {
        let mut entries = BTreeMap::new();
        let mut seen: Vec<(Inode, ImageEntry)> = Vec::new();
        for (name, binding) in names {
            let directory = directory_of(name);
            if !directory.is_empty() && names.get(directory) != Some(&Binding::Directory) {
                continue;
            }
            let entry = match binding {
                Binding::Directory => ImageEntry::Directory,
                Binding::File(inode) => {
                    match (seen.iter().find(|(of, _)| of == inode), self.files.get(inode)) {
                        (Some((_, entry)), _) => entry.clone(),
                        (None, None) => continue,
                        (None, Some(file)) => {
                            let (mut content, len) = file_of(*inode, file);
                            if content.reaches(len) {
                                Arc::make_mut(&mut content).cut(len);
                            }
                            let holes = match kind {
                                CrashKind::Process => &file.holes,
                                CrashKind::Power => &file.holes_at_worst,
                            };
                            let entry = ImageEntry::File { content, len, holes: Arc::clone(holes) };
                            seen.push((*inode, entry.clone()));
                            entry
                        }
                    }
                }
            };
            entries.insert(Arc::clone(name), entry);
        }
        Image {
            entries,
            kind,
            event: self.event,
            note: self.note,
            origin: self.origin,
            picks,
            same_boot: false,
        }
    }
}

impl fmt::Debug for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CrashState(event {}, {} units, {} images)",
            self.event,
            self.units(),
            self.images()
        )
    }
}
