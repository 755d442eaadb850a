//! The socket: packets with descriptors.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Most descriptors with one message.
pub const DESCRIPTORS_MAX: usize = 32;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Where connections come in.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0: the other end is closed.
    pub len: usize,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// It had more bytes, or more descriptors, than there was room for: they are lost.
    pub cut: bool,
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

impl Listener {
    /// Listens at a path where there is nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = socket()?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, 1024)?;
        Ok(Self(listener))
    }

    /// A listener that another process has made: a service manager, which holds it while no daemon
    /// runs.
    ///
    /// # Errors
    /// `InvalidInput`: it is no UNIX-domain socket of type `SOCK_SEQPACKET`, or does not listen; or
    /// what the system says.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        use rustix::net::sockopt;
        let fits = sockopt::socket_domain(&socket)? == AddressFamily::UNIX
            && sockopt::socket_type(&socket)? == SocketType::SEQPACKET
            && sockopt::socket_acceptconn(&socket)?;
        if !fits {
            let why = "it is no listening UNIX-domain socket of sequential packets";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self(socket))
    }

    /// The path that it listens at, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<std::path::PathBuf> {
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(&self.0).ok()?).ok()?;
        let path: std::ffi::OsString =
            std::os::unix::ffi::OsStringExt::from_vec(address.path_bytes()?.to_vec());
        Some(path.into())
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn accept(&self) -> io::Result<Channel> {
        Ok(Channel(rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC)?))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    /// One end of a connection, as it came in a message.
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Connects to a daemon.
    ///
    /// # Errors
    /// What the system says: no process listens there, say.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let channel = socket()?;
        rustix::net::connect(&channel, &SocketAddrUnix::new(path)?)?;
        Ok(Self(channel))
    }

    /// [`Channel::connect`], with a limit on each wait: for room among those that wait to be
    /// accepted, for a message to be sent, and for one to be received. A wait that is over is an
    /// error of kind [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// As [`Channel::connect`].
    pub fn connect_within(path: &Path, each: Duration) -> io::Result<Self> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        let channel = socket()?;
        for wait in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&channel, wait, Some(each))?;
        }
        rustix::net::connect(&channel, &SocketAddrUnix::new(path)?)?;
        Ok(Self(channel))
    }

    /// Two ends of a new connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(a), Self(b)))
    }

    /// The process that listens at the other end's path, or made this pair: as the kernel noted it.
    #[must_use]
    pub fn peer_pid(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0).ok()?;
        Some(peer.pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// How long a message may take to be sent before that is an error: the other end does not read.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_send_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_timeout(
            &self.0,
            rustix::net::sockopt::Timeout::Send,
            Some(timeout),
        )?)
    }

    /// Sends one packet with descriptors, at most [`DESCRIPTORS_MAX`].
    ///
    /// # Errors
    /// What the system says; too many descriptors.
    pub fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // There may be room for one more, for the sake of alignment.
        let fits = descriptors.len() <= DESCRIPTORS_MAX;
        if !fits
            || (!descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors)))
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "too many descriptors for one message",
            ));
        }
        loop {
            match rustix::net::sendmsg(
                &self.0,
                &[IoSlice::new(packet)],
                &mut control,
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Whether a packet, or the end of the connection, is there within this time.
    ///
    /// # Errors
    /// What the system says.
    pub fn readable_within(&self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for one packet, and takes none of the descriptors that come with it: the kernel drops
    /// them, so that this process never has, and never closes, what another process has
    /// opened. (To close a descriptor of a file gives up this process's locks on that file, and may
    /// wait for the server of its file system.)
    ///
    /// # Errors
    /// What the system says.
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.receive_with(buffer, &mut RecvAncillaryBuffer::default())
    }

    /// Waits for one packet.
    ///
    /// # Errors
    /// What the system says.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        self.receive_with(buffer, &mut RecvAncillaryBuffer::new(&mut space))
    }

    fn receive_with(
        &self,
        buffer: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
    ) -> io::Result<Received> {
        let got = loop {
            let mut slices = [IoSliceMut::new(buffer)];
            match rustix::net::recvmsg(&self.0, &mut slices, control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => break got,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(Received { len: got.bytes, descriptors, cut })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn packets_stay_apart_and_descriptors_come_with_theirs() {
        let (a, b) = Channel::pair().expect("pair");
        let file = File::open("/dev/zero").expect("open");
        a.send(b"one", &[]).expect("send");
        a.send(b"two", &[file.as_fd(), file.as_fd()]).expect("send");
        let mut buffer = [0; 16];
        let one = b.receive(&mut buffer).expect("receive");
        assert_eq!((one.len, one.descriptors.len(), one.cut), (3, 0, false));
        let two = b.receive(&mut buffer).expect("receive");
        assert_eq!((two.len, two.descriptors.len(), &buffer[..3]), (3, 2, &b"two"[..]));
        let mut byte = [1];
        File::from(two.descriptors.into_iter().next().expect("one"))
            .read_exact(&mut byte)
            .expect("read");
        assert_eq!(byte, [0]);
        drop(a);
        assert_eq!(b.receive(&mut buffer).expect("end").len, 0);
    }

    #[test]
    fn descriptors_that_are_not_wanted_do_not_come() {
        let (a, b) = Channel::pair().expect("pair");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        a.send(b"here", &[writer.as_fd(), writer.as_fd()]).expect("send");
        drop(writer);
        let mut buffer = [0; 16];
        let got = b.receive_bytes(&mut buffer).expect("receive");
        assert_eq!(
            (got.len, got.descriptors.len(), got.cut),
            (4, 0, true),
            "they are said to be lost"
        );
        // No process has the pipe's other end.
        assert_eq!(File::from(OwnedFd::from(reader)).read(&mut buffer).expect("its end"), 0);
    }

    #[test]
    fn only_a_listener_of_this_kind_is_adopted() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path).expect("bind");
        assert_eq!(listener.path().as_deref(), Some(&*path));
        let adopted = Listener::adopt(listener.0).expect("adopt");
        let client = Channel::connect(&path).expect("connect");
        drop(adopted.accept().expect("accept"));
        drop(client);
        let stream =
            std::os::unix::net::UnixListener::bind(dir.path().join("stream")).expect("bind");
        let (end, _) = Channel::pair().expect("pair");
        for other in [OwnedFd::from(stream), end.0, File::open("/dev/null").expect("open").into()] {
            assert!(Listener::adopt(other).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_is_cut_and_said_to_be() {
        let (a, b) = Channel::pair().expect("pair");
        a.send(&[7; 100], &[]).expect("send");
        let got = b.receive(&mut [0; 10]).expect("receive");
        assert!(got.cut);
        let file = File::open("/dev/zero").expect("open");
        let many = [file.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(a.send(b"x", &many).is_err());
        a.send(b"x", &many[1..]).expect("as many as may be");
    }
}
