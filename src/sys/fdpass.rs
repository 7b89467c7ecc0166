//! Bytes with descriptors and credentials over a Unix socket (unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

/// Most descriptors in one message here. The kernel allows 253.
pub(crate) const MAX_FDS: usize = 8;

/// One received message (or piece of a stream).
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes written to the buffer; 0 means end of file.
    pub(crate) len: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// Process id of the sender as this process sees it, where the socket has
    /// `SO_PASSCRED` set. The kernel fills it in; the sender cannot forge it.
    pub(crate) pid: Option<rustix::process::Pid>,
    /// Something did not fit: bytes of a packet, or descriptors.
    pub(crate) truncated: bool,
}

/// Two connected sockets that keep packets apart. The first does not block, and
/// is told the sender's pid with each packet.
pub(crate) fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    sockopt::set_socket_passcred(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends `bytes` with `fds`; returns how many bytes were taken. Never raises
/// SIGPIPE. On a stream the descriptors go with the first byte.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(rustix::io::Errno::TOOMANYREFS));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(sent)
}

/// Receives into `buffer`; the descriptors are close-on-exec.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut received = Received {
        len: message.bytes,
        fds: Vec::new(),
        pid: None,
        truncated: message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
    };
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => received.fds.extend(fds),
            RecvAncillaryMessage::ScmCredentials(credentials) => {
                received.pid = Some(credentials.pid)
            }
            _ => {}
        }
    }
    Ok(received)
}
