//! The puddle that is made ahead, and the thread that makes it ([`crate::kernel::pools::spare`]).

use crate::kernel::puddles::puddle::{create_primary, create_stamped, file_name, text};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::Uuid;
use cenote_medium::{MediumError, OwnedMedium};
use std::fs::File;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long that begins after it was asked for, unless a caller waits for it.
const PAUSE: Duration = Duration::from_millis(2);

/// Stack of the thread that makes puddles ahead.
const STACK_BYTES: usize = 128 << 10;

/// The puddle that is made ahead, and the thread that makes it.
#[derive(Debug, Default)]
pub(crate) struct PreparedPuddle {
    pub(crate) stage: Stage,
    pub(crate) maker: Option<Maker>,
}

#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// There is none.
    #[default]
    Nothing,
    /// The thread makes its files.
    Making(AheadPlan),
    /// They are there, and no record names them yet. The descriptor is for the client that will be
    /// given it.
    Made(AheadPlan, Option<File>),
}

/// What a puddle that is made ahead will be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AheadPlan {
    /// As its header says.
    pub(crate) record: PuddleRecord,
    /// It has a primary.
    pub(crate) shadowed: bool,
    /// It will be handed out.
    pub(crate) granted: bool,
    /// The stamp of a file that is handed out ([`crate::kernel::puddles::stamps`]).
    pub(crate) stamp: u64,
}

/// One thread for a store, from the first order on until the store is closed.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) orders: Sender<Order>,
    pub(crate) made: Receiver<Made>,
    thread: JoinHandle<()>,
}

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum Order {
    Make(AheadPlan),
    /// A caller waits for it.
    Hurry,
}

/// What the thread says: a descriptor, if one was wanted and could be had.
pub(crate) type Made = Result<Option<File>, MediumError>;

impl AheadPlan {
    /// Makes the files; if that fails they are gone again.
    pub(crate) fn make(&self, medium: &OwnedMedium, store: Uuid) -> Made {
        create_stamped(medium, &self.record, store, self.stamp)?;
        let file = file_name(self.record.uuid);
        if self.shadowed
            && let Err(error) = create_primary(medium, &self.record, store)
        {
            let _ = medium.remove(text(&file));
            return Err(error);
        }
        // Its client gets another one if there is none now.
        Ok(if self.granted { medium.grant(text(&file), true).unwrap_or(None) } else { None })
    }
}

impl Maker {
    pub(crate) fn start(medium: OwnedMedium, store: Uuid) -> std::io::Result<Self> {
        let (orders, ordered) = mpsc::channel::<Order>();
        let (done, made) = mpsc::channel();
        let work = move || {
            let _quiet = cenote_sys::signals::Blocked::new();
            while let Ok(order) = ordered.recv() {
                let Order::Make(plan) = order else { continue };
                // To take its space occupies a processor for as long as a millisecond. The
                // taker of the last one needs that more.
                let _ = ordered.recv_timeout(PAUSE);
                if done.send(plan.make(&medium, store)).is_err() {
                    return;
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("cenote-spare".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(work)?;
        Ok(Self { orders, made, thread })
    }
}

impl PreparedPuddle {
    pub(crate) fn plan(&self) -> Option<&AheadPlan> {
        match &self.stage {
            Stage::Nothing => None,
            Stage::Making(plan) | Stage::Made(plan, _) => Some(plan),
        }
    }

    pub(crate) fn record(&self) -> Option<&PuddleRecord> {
        self.plan().map(|plan| &plan.record)
    }

    /// Waits for the end of the thread: it uses the directory under the store's lock.
    pub(crate) fn stop(self) {
        if let Some(Maker { orders, thread, .. }) = self.maker {
            drop(orders);
            let _ = thread.join();
        }
    }
}
