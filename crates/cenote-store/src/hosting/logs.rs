//! Gives clients puddles for their logs.

use crate::kernel::interface::error::StoreError;
use crate::kernel::logs::{LOG_SPACE_SIZE, SEGMENT_SIZE_MAX, capacity_of, space_header};
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Inner, Store};
use cenote_layout::catalog::{ClientRecord, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{Role, header_space};
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use zerocopy::IntoBytes;

/// Most log puddles of one client: as many as its log space has room for, and the log space.
const LOGS_MAX: usize = 1024;

impl Store {
    /// Gives a client a puddle for a log, or its log space, which is made the first time.
    ///
    /// # Errors
    /// No such client; more logs than a log space lists; a size that no log has; no space.
    pub fn client_log(
        &self,
        client: Uuid,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("give a client a log")?;
        let logs = control.hosted().get(&client).ok_or(StoreError::NoClient { client })?.logs.len();
        if let (Role::LogSpace, Some(space)) = (role, control.catalog.state.clients.get(&client))
            && let Some(puddle) = control.catalog.state.puddles.get(space)
        {
            return Ok(*puddle);
        }
        if logs >= LOGS_MAX {
            return Err(StoreError::TooManyLogs { logs: logs as u64 });
        }
        let mut records = control.introduce(client)?;
        let size = if role == Role::LogSpace { LOG_SPACE_SIZE } else { size };
        let sizes = 8192..=SEGMENT_SIZE_MAX;
        if !sizes.contains(&size) || !size.is_multiple_of(cenote_layout::PAGE_SIZE) {
            return Err(StoreError::PuddleSize { size, reason: "a log's has 8 KiB to 64 MiB" });
        }
        let record = inner.new_puddle(&mut control, PoolId(0), role, 0, size)?;
        if role == Role::LogSpace {
            if let Err(error) = inner.write_log_space(client, &record) {
                let _ = inner.medium.remove(text(&file_name(record.uuid)));
                control.space.give_back(record.addr, record.size);
                return Err(inner.failed(error));
            }
            records.push(Record::Client(ClientRecord { client, log_space: record.uuid }));
        }
        inner.commit_new_puddle(&mut control, &record, &records)?;
        control.introduced(client);
        if let Some(hosted) = control.hosted_mut().get_mut(&client) {
            hosted.logs.insert(record.uuid);
        }
        Ok(record)
    }
}

impl Inner {
    /// Writes the header of a log space into its file, durably.
    fn write_log_space(&self, client: Uuid, space: &PuddleRecord) -> Result<(), MediumError> {
        let head = header_space(space.size);
        let header = space_header(client, capacity_of(space.size - head));
        let name = file_name(space.uuid);
        self.medium.write_at(text(&name), head, header.as_bytes())?;
        match planted(Bug::LogSpaceNotSynced) {
            true => Ok(()),
            false => self.medium.sync(text(&name)),
        }
    }
}
