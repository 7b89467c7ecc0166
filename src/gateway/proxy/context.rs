//! What every connection of one worker uses: buffers, slots, the pool, the
//! audit lines of this turn.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use mio::Registry;
use mio::net::TcpStream;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::gateway::audit::Record;
use crate::gateway::denial;
use crate::gateway::dns;
use crate::gateway::http::authority::Authority;
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::shared::Shared;
use crate::gateway::upstream::pool::Pool;
use crate::policy::decide::Rules;

/// A full record of TLS 1.3: type and length, data, its type, the tag.
const RECORD: usize = 5 + (16 << 10) + 1 + 16;
/// Bytes that are read from a socket at once.
pub(crate) const READ: usize = 4 * RECORD;
/// Room for a record that is not whole, before what is read.
const LEFTOVER: usize = 20 << 10;
/// Buffers that are kept for the next connection that needs one.
const SPARE: usize = 8;
const MAX_SPARE_SIZE: usize = 256 << 10;

/// What a descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Mail,
    HttpListener,
    SocksListener,
    /// Of the connection with this number.
    Client(usize),
    Upstream(usize),
    /// In the pool.
    Idle,
}

/// Token -> owner. A freed slot is given out again only after the turn, so
/// that no event of it can reach somebody else.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    owners: Vec<Owner>,
    free: Vec<usize>,
    freed: Vec<usize>,
}

impl Slots {
    pub(crate) fn take(&mut self, owner: Owner) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.set(slot, owner);
                slot
            }
            None => {
                self.owners.push(owner);
                self.owners.len() - 1
            }
        }
    }

    pub(crate) fn set(&mut self, slot: usize, owner: Owner) {
        if let Some(entry) = self.owners.get_mut(slot) {
            *entry = owner;
        }
    }

    pub(crate) fn owner(&self, slot: usize) -> Owner {
        self.owners.get(slot).copied().unwrap_or(Owner::Nobody)
    }

    /// Nothing happens for a socket that has no slot here.
    pub(crate) fn release(&mut self, slot: usize) {
        if let Some(entry) = self.owners.get_mut(slot) {
            *entry = Owner::Nobody;
            self.freed.push(slot);
        }
    }

    pub(crate) fn end_turn(&mut self) {
        self.free.append(&mut self.freed);
    }
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    /// As of this turn.
    pub(crate) rules: Arc<Rules>,
    /// Of the policy, the same in all workers.
    pub(crate) generation: u64,
    pub(crate) registry: Registry,
    pub(crate) slots: Slots,
    pub(crate) pool: Pool,
    /// Which worker this is.
    pub(crate) worker: usize,
    /// As of this turn.
    pub(crate) now: Instant,
    pub(crate) input: Box<[u8]>,
    /// Reads that have filled their room.
    pub(crate) full_reads: u64,
    /// Descriptors from here on are kept for the policy, the audit and names.
    fd_limit: i32,
    spare: Vec<Vec<u8>>,
    lines: Vec<u8>,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, registry: Registry, worker: usize) -> Context {
        let (rules, generation) = shared.rules();
        Context {
            rules,
            generation,
            shared,
            registry,
            slots: Slots::default(),
            pool: Pool::default(),
            worker,
            now: Instant::now(),
            input: vec![0; READ + LEFTOVER].into_boxed_slice(),
            full_reads: 0,
            spare: Vec::new(),
            lines: Vec::new(),
            fd_limit: fd_limit(),
        }
    }

    /// Reads once into the input buffer, behind what is left of the last records.
    pub(crate) fn read(
        &mut self,
        socket: &mut Socket,
        leftover: &[u8],
    ) -> std::io::Result<Received> {
        let start = leftover.len();
        let end = records_end(start).min(self.input.len());
        if let Some(front) = self.input.get_mut(..start) {
            front.copy_from_slice(leftover);
        }
        let room = self.input.get_mut(start..end).unwrap_or_default();
        let received = socket.read(room)?;
        self.full_reads += u64::from(received == Received::Data(room.len()));
        Ok(received)
    }

    /// An empty buffer, from the spare ones if there is one.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Lends `buffer` room, if it has none.
    pub(crate) fn lend(&mut self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0 {
            *buffer = self.buffer();
        }
    }

    /// Takes the room of an empty buffer back; a connection that waits keeps
    /// only what it has to. Returns how much that is.
    pub(crate) fn settle(&mut self, buffer: &mut Vec<u8>) -> usize {
        if buffer.is_empty() {
            let buffer = std::mem::take(buffer);
            if (1..=MAX_SPARE_SIZE).contains(&buffer.capacity()) && self.spare.len() < SPARE {
                self.spare.push(buffer);
            }
            return 0;
        }
        if buffer.capacity() > buffer.len() * 2 {
            buffer.shrink_to_fit();
        }
        buffer.capacity()
    }

    /// Whether a descriptor is left for others beside that of `stream`.
    pub(crate) fn has_room(&self, stream: &TcpStream) -> bool {
        // The kernel gives out the lowest number that is free.
        stream.as_raw_fd() < self.fd_limit
    }

    /// Registers a stream for `owner`.
    pub(crate) fn adopt(&mut self, stream: TcpStream, owner: Owner) -> std::io::Result<Socket> {
        if !self.has_room(&stream) {
            return Err(Errno::MFILE.into());
        }
        let slot = self.slots.take(owner);
        let socket = Socket::new(stream, slot, &self.registry);
        if socket.is_err() {
            self.slots.release(slot);
        }
        socket
    }

    /// Takes a socket out of this worker. It has no slot until it enters another.
    pub(crate) fn leave(&mut self, socket: &mut Socket) -> std::io::Result<()> {
        self.slots.release(socket.slot());
        socket.leave(&self.registry)
    }

    /// Takes a socket of another worker, for `owner`. Whatever comes of it, it
    /// has a slot then, and is to be closed here.
    pub(crate) fn enter(&mut self, socket: &mut Socket, owner: Owner) -> std::io::Result<()> {
        let slot = self.slots.take(owner);
        socket.enter(slot, &self.registry)
    }

    /// Lets a socket go.
    pub(crate) fn close(&mut self, mut socket: Socket) {
        self.slots.release(socket.slot());
        socket.discard();
        let mut out = std::mem::take(&mut socket.out);
        self.settle(&mut out);
    }

    pub(crate) fn record(&mut self, record: &Record<'_>) {
        let workspace = self.shared.workspace.as_str();
        let record = Record {
            workspace,
            ..record.clone()
        };
        record.write_to(&mut self.lines);
    }

    /// Of what was meant for `target`, as far as that is known.
    pub(crate) fn record_for(&mut self, target: Option<&Authority>, record: Record<'_>) {
        let host = target.map(|target| denial::bare(&target.host));
        self.record(&Record {
            host: host.as_deref(),
            port: target.map(|target| target.port),
            ..record
        });
    }

    /// Writes the audit lines of this turn.
    pub(crate) fn end_turn(&mut self) {
        if !self.lines.is_empty() {
            self.shared.audit.write(&self.lines);
            self.lines.clear();
        }
        self.slots.end_turn();
    }
}

/// Where full records would end, so that nothing is left over again.
fn records_end(start: usize) -> usize {
    match start {
        0..RECORD => READ,
        // Of a message in several records: there must be room for more.
        _ => start + READ,
    }
}

/// Descriptors that connections may not use up: those of names, and some for
/// the policy, the audit and the rest.
const RESERVED_FDS: usize = dns::MAX_CLIENTS + dns::MAX_LOOKUPS + 32;

fn fd_limit() -> i32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let ours = limit.saturating_sub(RESERVED_FDS as u64);
    i32::try_from(ours).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_with_a_full_record_and_always_has_room() {
        for leftover in [0, 1, RECORD - 1] {
            assert_eq!(records_end(leftover) % RECORD, 0);
        }
        for leftover in [0, 1, RECORD - 1, RECORD, READ, 2 * READ] {
            assert!(records_end(leftover) >= leftover + RECORD, "{leftover}");
        }
    }
}
