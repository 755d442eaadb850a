//! A connection to a daemon: one socket, one request at a time.

use crate::answers::nonsense;
use crate::silence::{ConnectOptions, LOOK_EVERY, Patience};
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::{Durability, MediumInfo, MediumKind};
use cenote_proto::{Channel, MESSAGE_LEN_MAX, Refusal, Reply, Request, decode, encode};
use cenote_store::{Home, PoolListing};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// A connection, and the number of the last request.
#[derive(Debug)]
pub(crate) struct DaemonLine {
    channel: Channel,
    patience: Patience,
    number: u32,
    buffer: Vec<u8>,
}

impl DaemonLine {
    /// Connects, and says hello; with `resume` it goes on with that session. The descriptor is the
    /// one by which the daemon knows this program.
    pub(crate) fn open(
        path: &Path,
        resume: Option<Uuid>,
        options: ConnectOptions,
    ) -> io::Result<(Self, Home, Option<OwnedFd>)> {
        let patience = Patience::new(path, options);
        let channel = patience.connect()?;
        let mut line = Self { channel, patience, number: 0, buffer: vec![0; MESSAGE_LEN_MAX] };
        let (reply, mut descriptors) = line.ask(&Request::Hello { resume })?;
        match reply {
            Reply::Welcome { client, store, window_base, window_len, medium, power } => {
                let level = |power| if power { Durability::Power } else { Durability::Process };
                let kind = match &*medium.kind {
                    "dax" => MediumKind::Dax,
                    "tmpfs" => MediumKind::Tmpfs,
                    "network" => MediumKind::Network,
                    "overlay" => MediumKind::Overlay,
                    _ => MediumKind::Ordinary,
                };
                let (path, fs, note) = (medium.path, medium.fs, medium.note);
                let medium = MediumInfo { path, kind, fs, durability: level(medium.power), note };
                let durability = level(power);
                let home = Home { client, store, window_base, window_len, medium, durability };
                Ok((line, home, descriptors.pop()))
            }
            Reply::Refused(Refusal::NoSession) => {
                Err(io::Error::new(io::ErrorKind::NotFound, "the session has ended"))
            }
            other => Err(nonsense(&other)),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn ask(&mut self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        Ok(self.ask_while(request, None)?.unwrap_or((Reply::Done, Vec::new())))
    }

    /// The same for an answer that takes long: `more` is asked whether to wait on. `None`: it said
    /// no; the connection is of no use then.
    pub(crate) fn ask_while(
        &mut self,
        request: &Request,
        mut more: Option<&mut dyn FnMut() -> bool>,
    ) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        self.number = self.number.wrapping_add(1);
        let invalid =
            |error: cenote_proto::DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
        let packet = encode(self.number, request).map_err(invalid)?;
        self.channel.send(&packet, &[]).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => self.patience.over(Some(&self.channel)),
            _ => error,
        })?;
        if let Some(more) = more.as_mut() {
            let mut heard = Instant::now();
            while !self.channel.readable_within(LOOK_EVERY)? {
                if !more() {
                    return Ok(None);
                }
                if heard.elapsed() >= self.patience.half() {
                    if self.patience.ask_for_life(&self.channel, Some(&mut **more))?.is_none() {
                        return Ok(None);
                    }
                    heard = Instant::now();
                }
            }
        }
        // The socket has the limit: no request takes a further call.
        let received = loop {
            match self.channel.receive(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.patience.ask_for_life(&self.channel, None)?;
                }
                received => break received?,
            }
        };
        if received.len == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let (number, reply) = decode(&self.buffer[..received.len]).map_err(invalid)?;
        if received.cut || number != self.number {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the daemon's answer is to another request",
            ));
        }
        Ok(Some((reply, received.descriptors)))
    }
}

/// Whether the error may mean that the daemon has ended and another follows.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, NotConnected,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | NotConnected
    )
}

/// All pools, page by page.
pub(crate) fn pages_of_pools<E>(
    mut ask: impl FnMut(&Request) -> core::result::Result<Reply, E>,
    wrong: impl Fn(Reply) -> E,
) -> core::result::Result<Vec<PoolListing>, E> {
    let (mut listed, mut after): (Vec<PoolListing>, Option<PoolId>) = (Vec::new(), None);
    loop {
        match ask(&Request::Pools { after })? {
            Reply::Pools { items, more } => {
                let last = items.last().map(|item| item.record.id);
                listed.extend(items.into_iter().map(|item| PoolListing {
                    record: item.record,
                    bytes: item.bytes,
                    puddles: item.puddles,
                }));
                if !more || last <= after {
                    return Ok(listed);
                }
                after = last;
            }
            other => return Err(wrong(other)),
        }
    }
}
