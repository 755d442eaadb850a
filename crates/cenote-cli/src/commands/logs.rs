//! Logs as they are on media, for `dump`: log spaces and logs are read from their files, not from
//! what recovery made of them.

use cenote::Store;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::log_space::{
    ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, Listing, LogSpaceEntry, LogSpaceHeader,
};
use cenote_layout::puddle::{Role, header_space};
use cenote_log::{Body, CrashKind, inspect};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What a client left.
pub(crate) struct ClientLogs {
    pub(crate) client: Uuid,
    /// `Err`: why the log space cannot be read.
    pub(crate) logs: Result<Vec<LogOnMedia>, String>,
}

/// One log.
pub(crate) struct LogOnMedia {
    pub(crate) log_id: u64,
    pub(crate) puddle: Uuid,
    /// `Err`: what is wrong with it.
    pub(crate) contents: Result<Contents, String>,
}

/// What a log says.
pub(crate) struct Contents {
    pub(crate) stage: String,
    pub(crate) segments: u32,
    pub(crate) capacity: u64,
    pub(crate) sealed: bool,
    pub(crate) quarantined: bool,
    pub(crate) entries: Vec<EntryOnMedia>,
}

/// One entry.
pub(crate) struct EntryOnMedia {
    pub(crate) kind: String,
    pub(crate) addr: u64,
    pub(crate) size: u32,
}

/// A puddle's file in memory, as aligned as its mapping would be.
struct Image {
    lines: Vec<ImageLine>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct ImageLine([u8; 64]);

impl Image {
    fn load(store: &Store, record: &PuddleRecord) -> Result<Self, String> {
        let bytes =
            store.read_file(&format!("puddles/{}", hex(record.uuid))).map_err(|e| e.to_string())?;
        if bytes.len() as u64 != record.size {
            return Err(format!("its file has {} bytes instead of {}", bytes.len(), record.size));
        }
        let mut lines = Vec::with_capacity(bytes.len().div_ceil(64));
        for chunk in bytes.chunks(64) {
            let mut line = ImageLine([0; 64]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            lines.push(line);
        }
        Ok(Self { lines, len: bytes.len() })
    }

    /// The body, after the header space. Header space is a multiple of a page, so the body is
    /// aligned as well.
    fn body(&mut self, record: &PuddleRecord) -> Body {
        let skip = (header_space(record.size) as usize).min(self.len);
        let len = (self.len - skip) as u64;
        Body::new(self.lines.as_mut_ptr().cast::<u8>().wrapping_add(skip), len)
    }
}

pub(crate) fn hex(uuid: Uuid) -> String {
    uuid.to_hex().iter().map(|b| char::from(*b)).collect()
}

/// All clients' logs.
pub(crate) fn read_all(store: &Store) -> Vec<ClientLogs> {
    let puddles = store.puddle_records();
    let crash = store.report().crash.unwrap_or(CrashKind::Process);
    store
        .client_records()
        .into_iter()
        .map(|record| ClientLogs {
            client: record.client,
            logs: read_space(store, &puddles, record.client, record.log_space, crash),
        })
        .collect()
}

fn read_space(
    store: &Store,
    puddles: &[PuddleRecord],
    client: Uuid,
    space: Uuid,
    crash: CrashKind,
) -> Result<Vec<LogOnMedia>, String> {
    let record = puddles.iter().find(|p| p.uuid == space && p.role == Role::LogSpace);
    let record = record.ok_or("the catalog has no record of its log space")?;
    let mut image = Image::load(store, record)?;
    let body = image.body(record);
    // SAFETY: the body lies in `image`, which lives until the end of this function and is not
    // written to.
    let bytes = unsafe { body.bytes() };
    let header = read::<LogSpaceHeader>(bytes, false).map_err(|error| error.to_string())?;
    if header.client != client {
        return Err(format!("its log space is that of client {}", header.client));
    }
    let mut logs = Vec::new();
    for bytes in bytes.get(LOG_SPACE_ENTRIES_OFFSET as usize..).unwrap_or_default().chunks_exact(64)
    {
        let Some(Listing::Names(entry)) = parse(bytes).map(|entry| entry.read(false)) else {
            continue;
        };
        if entry.state != ENTRY_HEAD {
            continue;
        }
        let contents = read_log(store, puddles, &entry, (crash, store.log_distance(client)));
        logs.push(LogOnMedia { log_id: entry.log_id, puddle: entry.puddle, contents });
    }
    Ok(logs)
}

fn read_log(
    store: &Store,
    puddles: &[PuddleRecord],
    head: &LogSpaceEntry,
    (crash, distance): (CrashKind, u64),
) -> Result<Contents, String> {
    // A log that waited while the window moved says addresses of before.
    let now_at = |addr: u64| addr.wrapping_add(distance);
    let log_puddle =
        |addr: u64| puddles.iter().find(|p| p.addr == now_at(addr) && p.role == Role::Log);
    let record = log_puddle(head.addr).ok_or("the catalog has no record of its puddle")?;
    let mut image = Image::load(store, record)?;
    let body = image.body(record);
    if body.len < Body::LEN_MIN {
        return Err("its puddle is too small for a log".into());
    }
    let mut segments: BTreeMap<u64, Image> = BTreeMap::new();
    let mut segment = |_owner: Uuid, addr: u64| {
        let record = log_puddle(addr)?;
        let image = match segments.entry(addr) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Image::load(store, record).ok()?),
        };
        let body = image.body(record);
        (body.len >= Body::LEN_MIN).then_some(body)
    };
    // SAFETY: the bodies lie in images that live until the end of this function; no other code
    // has them.
    let summary =
        unsafe { inspect(body, crash, &mut segment) }.map_err(|damage| damage.to_string())?;
    let entries = summary
        .entries
        .iter()
        .map(|entry| EntryOnMedia {
            kind: format!("{:?}", entry.kind),
            addr: now_at(entry.addr),
            size: entry.size,
        })
        .collect();
    Ok(Contents {
        stage: format!("{:?}", summary.stage).to_lowercase(),
        segments: summary.segments,
        capacity: summary.capacity,
        sealed: summary.sealed,
        quarantined: summary.quarantined,
        entries,
    })
}

/// An entry of a log space from its 64 bytes.
fn parse(bytes: &[u8]) -> Option<LogSpaceEntry> {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let puddle = Uuid(bytes.get(16..32)?.try_into().ok()?);
    Some(LogSpaceEntry {
        checksum: word(0)?,
        state: word(8)?,
        puddle,
        addr: word(32)?,
        log_id: word(40)?,
        segment: word(48)?,
        reserved: word(56)?,
    })
}
