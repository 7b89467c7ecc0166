//! One end of a TLS connection: records in, plain bytes out, and back. No I/O.
//!
//! rustls's unbuffered interface: an idle connection holds no buffers at all.

use std::fmt;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus,
};

/// Most that a record adds to its data, with room to spare.
const RECORD_OVERHEAD: usize = 64;
const MAX_RECORD: usize = 16 << 10;

/// Either end, as rustls has it.
pub(crate) trait Records {
    type Data;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Records for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

impl Records for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

/// A connection in which something went wrong for good.
#[derive(Debug)]
pub(crate) enum SessionError {
    Tls(rustls::Error),
    Encrypt,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::Tls(error) => error.fmt(f),
            SessionError::Encrypt => f.write_str("nothing more can be encrypted"),
        }
    }
}

impl From<rustls::Error> for SessionError {
    fn from(error: rustls::Error) -> SessionError {
        SessionError::Tls(error)
    }
}

pub(crate) struct Session<R> {
    records: R,
    /// What was received and is not used up: a record that is not whole.
    /// rustls keeps positions in it, so it is shown with every call.
    incoming: Vec<u8>,
    ready: bool,
    closed: bool,
}

/// Without the keys.
impl<R> fmt::Debug for Session<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("incoming", &self.incoming.len())
            .field("ready", &self.ready)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl<R: Records> Session<R> {
    pub(crate) fn new(records: R) -> Session<R> {
        Session {
            records,
            incoming: Vec::new(),
            ready: false,
            closed: false,
        }
    }

    /// Whether the handshake is far enough to send data.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the peer has closed its direction in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// What the bytes for the next `take` must begin with.
    pub(crate) fn leftover(&self) -> &[u8] {
        &self.incoming
    }

    /// Takes records: what was left over, and what was received after it. What
    /// the peer must be told goes to `out`, and each piece of data to `plain`.
    /// After an error `out` may hold an alert for the peer.
    pub(crate) fn take(
        &mut self,
        received: &mut [u8],
        out: &mut Vec<u8>,
        mut plain: impl FnMut(&[u8]),
    ) -> Result<(), SessionError> {
        let mut used = 0;
        loop {
            let rest = received.get_mut(used..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.records.process(rest);
            used += discard;
            let state = match state {
                Ok(state) => state,
                Err(error) => {
                    self.push_alert(received, out);
                    return Err(error.into());
                }
            };
            match state {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        used += record.discard;
                        plain(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => encode(out, &mut data)?,
                // Sent with `out`; if that fails the connection ends.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.closed = true,
                ConnectionState::WriteTraffic(_) => {
                    self.ready = true;
                    break;
                }
                // Early data is never offered nor accepted.
                _ => break,
            }
        }
        self.incoming = received.get(used..).unwrap_or_default().to_vec();
        Ok(())
    }

    /// After an error rustls has an alert ready, and hands it out first.
    fn push_alert(&mut self, received: &mut [u8], out: &mut Vec<u8>) {
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = self.records.process(received).state {
            // A peer that is not told finds out by the end of the connection.
            let _ = encode(out, &mut data);
        }
    }

    /// Begins a handshake, or goes on with what is there to say.
    pub(crate) fn start(&mut self, out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.take(&mut [], out, |_| {})
    }

    /// Encrypts `data` to the end of `out`.
    pub(crate) fn seal(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        loop {
            match self.records.process(&mut self.incoming).state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let guess = data.len() + (data.len() / MAX_RECORD + 1) * RECORD_OVERHEAD;
                    return append(out, guess, |buffer| match traffic.encrypt(data, buffer) {
                        Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                        other => other.map_err(|_| None),
                    });
                }
                // An answer to a key update, for example.
                ConnectionState::EncodeTlsData(mut data) => encode(out, &mut data)?,
                ConnectionState::TransmitTlsData(state) => state.done(),
                ConnectionState::PeerClosed => self.closed = true,
                _ => return Err(SessionError::Encrypt),
            }
        }
    }

    /// Says that nothing more will come.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
            self.records.process(&mut self.incoming).state
        {
            // As above.
            let _ = append(out, 64, |buffer| match traffic.queue_close_notify(buffer) {
                Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                other => other.map_err(|_| None),
            });
        }
    }
}

fn encode<Data>(out: &mut Vec<u8>, data: &mut EncodeTlsData<'_, Data>) -> Result<(), SessionError> {
    append(out, 256, |buffer| match data.encode(buffer) {
        Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
        other => other.map_err(|_| None),
    })
}

/// Lets `write` fill the end of `out`, with more room where it asks for it.
fn append(
    out: &mut Vec<u8>,
    guess: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Result<(), SessionError> {
    let start = out.len();
    let mut room = guess;
    for _ in 0..2 {
        out.resize(start + room, 0);
        match write(out.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(Some(InsufficientSizeError { required_size })) => room = required_size,
            Err(None) => break,
        }
    }
    out.truncate(start);
    Err(SessionError::Encrypt)
}
