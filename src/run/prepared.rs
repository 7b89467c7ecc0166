//! The cgroup of the next command, made ahead, where a process of pid 1 waits
//! for the command: see `init::standby` for why.

use std::io;

use crate::init::wire::ToInit;
use crate::run::control_plane::ControlPlane;
use crate::sys::cgroup::CommandCgroup;

/// With so many commands at once, nobody waits for the one process longer
/// than for the others.
const MAX_JOBS: usize = 16;

#[derive(Debug)]
pub(crate) struct Prepared {
    id: u64,
    cgroup: CommandCgroup,
}

impl ControlPlane {
    /// The number and the cgroup of a command that begins now.
    pub(crate) fn take_cgroup(&mut self) -> io::Result<(u64, CommandCgroup)> {
        // In a full sandbox the command would begin, but could start nothing.
        // A process made for it fails to begin, and room is made.
        if !self.is_full()
            && let Some(prepared) = self.prepared.take()
        {
            return Ok((prepared.id, prepared.cgroup));
        }
        self.create_cgroup()
    }

    /// Has pid 1 prepare for the next command. Without success that one just
    /// takes longer to begin.
    pub(crate) fn prepare_next(&mut self) {
        if self.prepared.is_some() || self.stopping || self.jobs.len() > MAX_JOBS {
            return;
        }
        if let Err(error) = self.try_prepare() {
            log::info!("nothing is prepared for the next command: {error}");
        }
    }

    fn try_prepare(&mut self) -> io::Result<()> {
        let (id, cgroup) = self.create_cgroup()?;
        if let Some(channel) = &mut self.channel {
            channel.push(&ToInit::Prepare { id }, vec![cgroup.open_procs()?])?;
        }
        self.prepared = Some(Prepared { id, cgroup });
        self.flush_channel();
        Ok(())
    }

    fn create_cgroup(&mut self) -> io::Result<(u64, CommandCgroup)> {
        let id = self.new_id();
        let base = match self.verified() {
            Some(verified) => &verified.cgroup,
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok((id, CommandCgroup::create(base, id)?))
    }

    fn is_full(&self) -> bool {
        let limit = self.context.spec.resources.pids_limit;
        self.verified()
            .and_then(|verified| verified.pids_current.value())
            .is_none_or(|current| current >= limit)
    }
}
