//! The control plane's end of descriptor 3 of pid 1. What comes from there is
//! untrusted input.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::Pid;

use crate::init::wire::{FromInit, MAX_PACKET, ToInit};
use crate::sys::fdpass;

/// Most packets read before other work gets its turn.
const TURN: usize = 64;

#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Packets that did not fit into the socket yet, with their descriptors.
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

/// A packet from pid 1.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) message: FromInit,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) pid: Option<Pid>,
}

/// What one turn of reading gave.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) packets: Vec<Packet>,
    pub(crate) state: ChannelState,
}

#[derive(Debug)]
pub(crate) enum ChannelState {
    Drained,
    MoreToRead,
    /// pid 1 is gone, or speaks nonsense; the reason is for people.
    Closed(String),
}

impl Channel {
    /// A new channel, and the end that pid 1 gets.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = fdpass::packet_pair()?;
        Ok((
            Channel {
                socket: ours,
                queue: VecDeque::new(),
            },
            theirs,
        ))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Queues a message; [`Channel::flush`] sends it.
    pub(crate) fn push(&mut self, message: &ToInit, fds: Vec<OwnedFd>) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_PACKET {
            return Err(io::Error::from(rustix::io::Errno::MSGSIZE));
        }
        self.queue.push_back((bytes, fds));
        Ok(())
    }

    /// Sends what there is room for; says whether that was all.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while let Some((bytes, fds)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(self.socket.as_fd(), bytes, &borrowed) {
                Ok(_) => {
                    self.queue.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn receive(&mut self) -> Turn {
        let mut packets = Vec::new();
        let mut buffer = vec![0; MAX_PACKET];
        while packets.len() < TURN {
            let received = match fdpass::receive(self.socket.as_fd(), &mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Turn {
                        packets,
                        state: ChannelState::Drained,
                    };
                }
                Err(error) => {
                    return Turn {
                        packets,
                        state: ChannelState::Closed(error.to_string()),
                    };
                }
            };
            let bytes = buffer.get(..received.len).unwrap_or_default();
            if bytes.is_empty() {
                return Turn {
                    packets,
                    state: ChannelState::Closed("pid 1 has ended".to_owned()),
                };
            }
            match serde_json::from_slice(bytes) {
                Ok(message) if !received.truncated => {
                    packets.push(Packet {
                        message,
                        fds: received.fds,
                        pid: received.pid,
                    });
                }
                _ => {
                    let state = ChannelState::Closed("pid 1 sent something unreadable".to_owned());
                    return Turn { packets, state };
                }
            }
        }
        Turn {
            packets,
            state: ChannelState::MoreToRead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_with_the_senders_pid() {
        let (mut channel, theirs) = Channel::pair().unwrap();
        fdpass::send(theirs.as_fd(), br#"{"started":{"id":1,"pid":5}}"#, &[]).unwrap();
        let turn = channel.receive();
        assert_eq!(turn.packets[0].message, FromInit::Started { id: 1, pid: 5 });
        assert_eq!(turn.packets[0].pid, Some(rustix::process::getpid()));
        assert!(matches!(turn.state, ChannelState::Drained));
    }

    #[test]
    fn nonsense_and_end_close_it() {
        for bytes in [&b"{"[..], b"{\"started\":{}}", b"[]"] {
            let (mut channel, theirs) = Channel::pair().unwrap();
            fdpass::send(theirs.as_fd(), bytes, &[]).unwrap();
            assert!(matches!(channel.receive().state, ChannelState::Closed(_)));
        }
        let (mut channel, theirs) = Channel::pair().unwrap();
        drop(theirs);
        assert!(matches!(channel.receive().state, ChannelState::Closed(_)));
    }
}
