//! Guards of this session's log space and logs (POS-3): a stray write finds them read-only.
//!
//! Only the writers of logs, and [`crate::kernel::logs`], store there. They do so through a second
//! mapping of the puddle at a random address ([`cenote_protect::Guards`]); memory holds its
//! distance alone. A puddle is guarded as a whole, its header included, when this session has
//! mapped it, and until the store is closed.
//!
//! | logs of | guarded |
//! | --- | --- |
//! | a process that has the store to itself, and of a daemon's client | yes |
//! | pools that are protected at rest | no: memory of this process, which no file has |
//! | earlier sessions, in recovery | no: no code of a program runs meanwhile |
//! | a simulated medium | no: it compares memory |
//!
//! The mode of a pool does not matter: logs have puddles of their own, and no psync looks at them.
//!
//! Where the kernel refuses, or mappings run short, a log is written at its own address, as all are
//! with [`OpenOptions::guards`](crate::OpenOptions::guards) `false`.

use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::{Control, Inner};
use cenote_medium::MediumKind;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_protect::{Guards, Protection, RangeKind};

impl Inner {
    /// Guards a puddle that this session has mapped for its logs, and that no code uses yet. The
    /// distance to add to an address in it, wrapping around, for a store; 0 where it is not
    /// guarded.
    pub(crate) fn guard_logs(&self, control: &mut Control, puddle: &Puddle) -> usize {
        let twice = self.info.kind != MediumKind::Simulated;
        if !twice || !self.options.guards || planted(Bug::Guard(GuardBug::LogsOpen)) {
            return 0;
        }
        let client = control.client;
        let guards = control.logs.guards.get_or_insert_with(|| {
            let what = format!("session {client}, in {}", self.info.path);
            Guards::of(RangeKind::Log, Protection::Hidden, &what)
        });
        let (start, len) = (puddle.addr() as usize, puddle.size() as usize);
        // SAFETY: its file is mapped there, shared and for writing, until the store is dropped,
        // which ends the guards before. All stores from now on are those of the log's writer, which
        // adds what is returned.
        unsafe { guards.add(start..start + len) }.unwrap_or(0)
    }
}
