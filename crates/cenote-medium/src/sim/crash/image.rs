//! Images: a medium as a crash left it, with one choice for every unit of the state.

use super::CrashKind;
use crate::sim::content::Content;
use crate::sim::model::Holes;
use crate::sim::options::Origin;
use crate::sim::random::{Random, mix};
use cenote_layout::id::Uuid;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a name stands for in an image.
#[derive(Clone)]
pub(crate) enum ImageEntry {
    File { content: Arc<Content>, len: u64, holes: Holes },
    Directory,
}

/// A medium as a crash left it: what the next opener finds. Cheap to clone.
///
/// The methods that change it are the lies of a medium: a bit that flipped, a sector that came back
/// old, a file that is gone.
#[derive(Clone)]
pub struct Image {
    pub(crate) entries: BTreeMap<Arc<str>, ImageEntry>,
    pub(super) kind: CrashKind,
    pub(super) event: usize,
    pub(super) note: u64,
    pub(super) origin: Origin,
    pub(super) picks: Vec<u16>,
    pub(super) same_boot: bool,
}

impl Image {
    /// An image of files as they are.
    pub(crate) fn plain(
        entries: BTreeMap<Arc<str>, ImageEntry>,
        kind: CrashKind,
        event: usize,
        origin: Origin,
    ) -> Self {
        Self { entries, kind, event, note: 0, origin, picks: Vec::new(), same_boot: false }
    }

    /// What kind of crash it is of.
    #[must_use]
    pub fn kind(&self) -> CrashKind {
        self.kind
    }

    /// The same files after the other kind of crash: another boot id, or the same.
    #[must_use]
    pub fn with_kind(mut self, kind: CrashKind) -> Self {
        self.kind = kind;
        self
    }

    /// Number of events before the crash.
    #[must_use]
    pub fn event(&self) -> usize {
        self.event
    }

    /// The same files, of a disk that lost power while the machine did not: it is mounted again
    /// under the same boot.
    #[must_use]
    pub fn mounted_again(mut self) -> Self {
        self.same_boot = true;
        self
    }

    /// The same image as if it had been made after so many events: the next opener's identifiers,
    /// boot id and clock are drawn from that number, so that images which are given the same
    /// one have the same future.
    #[must_use]
    pub fn at_event(mut self, event: usize) -> Self {
        self.event = event;
        self
    }

    /// The test's note of the moment of the crash; see
    /// [`CrashState::note`](super::CrashState::note).
    #[must_use]
    pub fn note(&self) -> u64 {
        self.note
    }

    /// The value of every unit, in the order of the [`CrashState`](super::CrashState): with the
    /// event, this names the image, and [`CrashState::image_of`](super::CrashState::image_of) makes
    /// it again. Empty for a crash of the process.
    pub fn picks(&self) -> &[u16] {
        &self.picks
    }

    /// The settings of the next opener's medium: another seed, so that it draws other identifiers;
    /// the old boot id after a crash of the process, else another.
    pub(crate) fn next_origin(&self) -> Origin {
        let mut next = self.origin;
        let power = self.kind == CrashKind::Power;
        next.options.seed = mix(next.options.seed ^ mix(self.event as u64 + 1)) ^ u64::from(power);
        next.mounting += u64::from(self.same_boot);
        if power && !self.same_boot {
            next.boot = Uuid::from_random_bytes(Random::new(mix(next.options.seed)).bytes16());
        }
        next
    }

    /// Hash of everything that the next opener can see: images with the same hash are the same
    /// medium.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.entries.iter().fold(
            u64::from(self.kind == CrashKind::Power) | u64::from(self.same_boot) << 1,
            |sum, (name, entry)| {
                let name = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
                sum.wrapping_add(match entry {
                    ImageEntry::Directory => mix(name),
                    ImageEntry::File { content, len, holes } => {
                        let holes = holes.iter().fold(0, |sum, page| mix(sum ^ mix(page + 1)));
                        mix(name ^ holes ^ mix(content.hash() ^ mix(len + 1)))
                    }
                })
            },
        )
    }

    /// Names of all files, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.entries.keys().map(|name| name.to_string()).collect()
    }

    /// Calls `f` with the name and length of each file, sorted by name.
    pub fn for_each_file(&self, mut f: impl FnMut(&Arc<str>, u64)) {
        for (name, entry) in &self.entries {
            if let ImageEntry::File { len, .. } = entry {
                f(name, *len);
            }
        }
    }

    /// Copies bytes of a file from `offset` on, zeros beyond its end. Returns whether there is such
    /// a file.
    #[must_use]
    pub fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(ImageEntry::File { content, .. }) = self.entries.get(name) else { return false };
        content.read(offset, buffer);
        true
    }

    /// Hash of the bytes of a file; files that read alike have the same. 0 if there is none of that
    /// name.
    #[must_use]
    pub fn file_hash(&self, name: &str) -> u64 {
        match self.entries.get(name) {
            Some(ImageEntry::File { content, len, .. }) => mix(content.hash() ^ mix(len + 1)),
            _ => 0,
        }
    }

    /// Makes bytes of a file zero, as far as it reaches.
    pub fn clear(&mut self, name: &str, offset: u64, len: u64) {
        if let Some(ImageEntry::File { content, len: file_len, .. }) = self.entries.get_mut(name) {
            let end = offset.saturating_add(len).min(*file_len);
            if offset < end && !content.is_zero(offset, end) {
                Arc::make_mut(content).fill_zero(offset, end);
            }
        }
    }

    /// The bytes of a file; `None` if there is none of that name.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        match self.entries.get(name)? {
            ImageEntry::Directory => None,
            ImageEntry::File { content, len, .. } => {
                let mut bytes = vec![0; usize::try_from(*len).ok()?];
                content.read(0, &mut bytes);
                Some(bytes)
            }
        }
    }

    /// Replaces a file, or makes one: for damage that the other methods do not offer.
    pub fn set_file(&mut self, name: &str, bytes: &[u8]) {
        let mut content = Content::default();
        content.write(0, bytes);
        let len = bytes.len() as u64;
        self.entries.insert(
            name.into(),
            ImageEntry::File { content: Arc::new(content), len, holes: Holes::default() },
        );
    }

    /// Inverts a bit of a file. Returns whether there is such a byte.
    pub fn flip_bit(&mut self, name: &str, offset: u64, bit: u8) -> bool {
        match self.entries.get_mut(name) {
            Some(ImageEntry::File { content, len, .. }) if offset < *len => {
                Arc::make_mut(content).flip(offset, bit);
                true
            }
            _ => false,
        }
    }

    /// Puts other bytes into a file, which does not grow. Returns whether the range lies in it.
    pub fn overwrite(&mut self, name: &str, offset: u64, bytes: &[u8]) -> bool {
        match self.entries.get_mut(name) {
            Some(ImageEntry::File { content, len, .. })
                if offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= *len) =>
            {
                if !content.holds(offset, bytes) {
                    Arc::make_mut(content).write(offset, bytes);
                }
                true
            }
            _ => false,
        }
    }

    /// Cuts a file off. Returns whether it was longer.
    pub fn truncate(&mut self, name: &str, new_len: u64) -> bool {
        match self.entries.get_mut(name) {
            Some(ImageEntry::File { content, len, .. }) if new_len < *len => {
                Arc::make_mut(content).cut(new_len);
                *len = new_len;
                true
            }
            _ => false,
        }
    }

    /// Takes a file away. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.entries.remove(name).is_some()
    }

    /// Rolls a file back to what it is in an older image (or takes it away, where it is missing
    /// there).
    pub fn roll_back(&mut self, name: &str, older: &Self) {
        match older.entries.get(name) {
            Some(entry) => self.entries.insert(name.into(), entry.clone()),
            None => self.entries.remove(name),
        };
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, event, note, picks, .. } = self;
        write!(f, "Image({kind:?} crash after event {event}, note {note}, picks {picks:?})")
    }
}
