//! Requests that wait for the sandbox: bounded, since a client may send them
//! all before there is one.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use crate::api::{ApiError, Call, ErrorKind, Exec, Shell, Terminal};

/// Most bytes of one client that wait, and of all together.
const MAX_BYTES_OF_CLIENT: usize = 32 << 20;
const MAX_BYTES: usize = 64 << 20;
/// Most descriptors of one client that wait, and of all together.
const MAX_FDS_OF_CLIENT: usize = 192;
const MAX_FDS: usize = 768;

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) connection: u64,
    pub(crate) request: u64,
    pub(crate) call: Call,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What waits, oldest first.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    queue: VecDeque<Waiting>,
    total: Held,
    of_client: HashMap<u64, Held>,
}

/// What requests hold while they wait.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Held {
    bytes: usize,
    fds: usize,
}

impl WaitingQueue {
    /// Takes in one more request, or says which limit is in the way.
    pub(crate) fn push(&mut self, waiting: Waiting) -> Result<(), ApiError> {
        let held = Held::by(&waiting);
        let of_client = self.of_client.entry(waiting.connection).or_default();
        let (client, total) = (of_client.plus(held), self.total.plus(held));
        client.check("of one client", MAX_BYTES_OF_CLIENT, MAX_FDS_OF_CLIENT)?;
        total.check("of all clients", MAX_BYTES, MAX_FDS)?;
        (*of_client, self.total) = (client, total);
        self.queue.push_back(waiting);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_front()?;
        self.let_go(&waiting);
        Some(waiting)
    }

    /// Takes out the first request that `is_meant`.
    pub(crate) fn take(&mut self, is_meant: impl Fn(&Call) -> bool) -> Option<Waiting> {
        let at = self
            .queue
            .iter()
            .position(|waiting| is_meant(&waiting.call))?;
        let waiting = self.queue.remove(at)?;
        self.let_go(&waiting);
        Some(waiting)
    }

    /// Takes out one request of a client.
    pub(crate) fn remove(&mut self, connection: u64, request: u64) -> Option<Waiting> {
        let is_meant =
            |waiting: &Waiting| waiting.connection == connection && waiting.request == request;
        let waiting = self.queue.remove(self.queue.iter().position(is_meant)?)?;
        self.let_go(&waiting);
        Some(waiting)
    }

    pub(crate) fn remove_client(&mut self, connection: u64) {
        self.queue
            .retain(|waiting| waiting.connection != connection);
        if let Some(held) = self.of_client.remove(&connection) {
            self.total = self.total.minus(held);
        }
    }

    fn let_go(&mut self, waiting: &Waiting) {
        let held = Held::by(waiting);
        self.total = self.total.minus(held);
        if let Some(of_client) = self.of_client.get_mut(&waiting.connection) {
            *of_client = of_client.minus(held);
        }
    }
}

impl IntoIterator for WaitingQueue {
    type Item = Waiting;
    type IntoIter = std::collections::vec_deque::IntoIter<Waiting>;

    fn into_iter(self) -> Self::IntoIter {
        self.queue.into_iter()
    }
}

impl Held {
    fn by(waiting: &Waiting) -> Held {
        let words = |argv: &[String]| -> usize {
            let each = argv.iter();
            each.map(|word| word.len() + size_of::<String>()).sum()
        };
        let (text, cwd) = match &waiting.call {
            Call::Shell(Shell { command, cwd, .. }) => (command.len(), cwd),
            Call::Exec(Exec { argv, cwd }) => (words(argv), cwd),
            Call::Terminal(Terminal {
                argv, cwd, term, ..
            }) => (words(argv) + term.len(), cwd),
            Call::Grant(grant) => (grant.path.len(), &None),
            Call::Revoke(revoke) => (revoke.path.len(), &None),
            _ => (0, &None),
        };
        Held {
            bytes: size_of::<Waiting>() + text + cwd.as_ref().map_or(0, String::len),
            fds: waiting.fds.len(),
        }
    }

    fn plus(self, other: Held) -> Held {
        Held {
            bytes: self.bytes + other.bytes,
            fds: self.fds + other.fds,
        }
    }

    fn minus(self, other: Held) -> Held {
        Held {
            bytes: self.bytes - other.bytes,
            fds: self.fds - other.fds,
        }
    }

    fn check(self, whose: &str, max_bytes: usize, max_fds: usize) -> Result<(), ApiError> {
        let limit = if self.bytes > max_bytes {
            format!("{max_bytes} bytes")
        } else if self.fds > max_fds {
            format!("{max_fds} descriptors")
        } else {
            return Ok(());
        };
        let message = format!("requests {whose} with more than {limit} would wait for the sandbox");
        Err(ApiError::new(ErrorKind::Limit, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(connection: u64, request: u64, length: usize) -> Waiting {
        Waiting {
            connection,
            request,
            call: Call::Shell(Shell {
                command: "x".repeat(length),
                ..Shell::default()
            }),
            fds: Vec::new(),
        }
    }

    /// Pushes until one is refused; how many were taken.
    fn fill(queue: &mut WaitingQueue, next: impl Fn(u64) -> Waiting) -> u64 {
        for request in 0.. {
            if let Err(error) = queue.push(next(request)) {
                assert_eq!(error.kind, ErrorKind::Limit);
                return request;
            }
        }
        0
    }

    #[test]
    fn bytes_that_wait_are_bounded_for_each_client_and_in_all() {
        let mut queue = WaitingQueue::default();
        let length = crate::api::MAX_COMMAND;
        assert_eq!(fill(&mut queue, |request| shell(1, request, length)), 15);
        assert_eq!(fill(&mut queue, |request| shell(2, request, length)), 15);
        assert_eq!(fill(&mut queue, |request| shell(3, request, length)), 1);
        // What leaves makes room, in each way of leaving.
        assert!(queue.pop().is_some() && queue.remove(1, 3).is_some());
        assert_eq!(fill(&mut queue, |request| shell(3, request, length)), 2);
        queue.remove_client(2);
        assert!(queue.remove(2, 1).is_none());
        assert_eq!(fill(&mut queue, |request| shell(3, request, length)), 12);
        while queue.pop().is_some() {}
        assert_eq!(queue.total, Held::default());
    }

    #[test]
    fn descriptors_that_wait_are_bounded() {
        let exec = |connection, request| Waiting {
            connection,
            request,
            call: Call::Exec(Exec {
                argv: vec!["cat".to_owned()],
                cwd: None,
            }),
            fds: (0..3).map(|_| std::io::pipe().unwrap().0.into()).collect(),
        };
        let mut queue = WaitingQueue::default();
        for client in 0..4 {
            assert_eq!(fill(&mut queue, |request| exec(client, request)), 64);
        }
        assert_eq!(fill(&mut queue, |request| exec(4, request)), 0);
    }

    #[test]
    fn many_small_requests_count_as_well() {
        let list = |connection, request| Waiting {
            connection,
            request,
            call: Call::List(crate::api::Empty {}),
            fds: Vec::new(),
        };
        let mut queue = WaitingQueue::default();
        let most = MAX_BYTES_OF_CLIENT / size_of::<Waiting>();
        assert_eq!(fill(&mut queue, |request| list(1, request)), most as u64);
    }
}
