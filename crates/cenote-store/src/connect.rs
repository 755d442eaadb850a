//! Opens a store as a client of the daemon that keeps it.

use crate::connection::Connection;
use crate::daemon_api::{DaemonApi, Home};
use crate::kernel::catalog::Catalog;
use crate::kernel::interface::error::{OpenError, StoreError};
use crate::kernel::interface::options::OpenOptions;
use crate::kernel::interface::rewriter::{Backend, RelocationOptions};
use crate::kernel::puddles::known;
use crate::kernel::puddles::stamps::Stamps;
use crate::kernel::puddles::window::{Space, StoreWindow, who_is_at};
use crate::kernel::store::{Control, Inner, Store};
use crate::lazy;
use crate::parts;
use crate::pending_rewrite::lazy_rewrite::LazyRewrite;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::superblock::Superblock;
use cenote_medium::{GrantedMedium, MediumError, OwnedMedium};
use cenote_sys::fork_guard;
use core::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use zerocopy::FromZeros;

impl Store {
    /// A store that a daemon keeps, as one of its clients. No file is opened, nothing is recovered:
    /// the daemon has done that.
    ///
    /// # Errors
    /// The window's addresses are taken in this process ([`OpenError::WindowOfDaemon`]); the daemon
    /// cannot be reached, or says what cannot be.
    ///
    /// # Safety
    /// `daemon` passes on what the daemon of this store grants, and nothing else: its files are
    /// mapped into the window, and what is in them is believed.
    pub unsafe fn connect(home: &Home, daemon: Box<dyn DaemonApi>) -> Result<Self, OpenError> {
        let path = home.medium.path.clone();
        let failed = |source| OpenError::Medium { path: path.clone(), source: Box::new(source) };
        let refused = |error: StoreError| OpenError::Daemon {
            path: path.clone(),
            kind: error.kind(),
            detail: error.to_string(),
        };
        let (base, len) = (home.window_base, home.window_len);
        let files = Arc::new(GrantedMedium::new(home.medium.clone()));
        // SAFETY: the files are the daemon's, which changes them; this medium refuses to.
        let medium = unsafe { OwnedMedium::new(Arc::clone(&files) as _) };
        medium.reserve_window(base, len).map_err(|error| match error {
            MediumError::WindowTaken { .. } => OpenError::WindowOfDaemon {
                path: path.clone(),
                base,
                len,
                by: who_is_at(base, len),
            },
            error => failed(error),
        })?;
        known::note(base, len);
        let mut superblock = Superblock::new_zeroed();
        (superblock.store, superblock.window_base, superblock.window_len) = (home.store, base, len);
        let poisoned = Arc::default();
        let (files_of, of) = (medium.clone(), home.store);
        // The daemon rewrites all of a moved pool before it grants the pool.
        let relocation = RelocationOptions { rewriter: None, backend: Backend::Eager };
        let frontier =
            LazyRewrite::new(files_of, of, (false, false), relocation, Arc::clone(&poisoned));
        let store = Self::new(Arc::new(Inner {
            window: StoreWindow::of_store(base, len, 0, &home.medium.path),
            persistence: medium.persistence(home.durability),
            info: home.medium.clone(),
            uuid: home.store,
            writable: true,
            eager: true,
            options: OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() },
            durability: home.durability,
            token: fork_guard::token(),
            poisoned,
            stamps: Stamps::default(),
            parts: parts::of_store(frontier),
            replaying: Mutex::default(),
            silent: AtomicBool::new(false),
            remote: Some(Box::new(Connection::new(daemon, files))),
            fence: None,
            journals: Mutex::default(),
            files_moving: Mutex::default(),
            primaries: Mutex::default(),
            control: Mutex::new(Control::new(
                superblock,
                Catalog::mirror(medium.clone()),
                Space::new(base, len),
                home.client,
                parts::under_lock(),
            )),
            medium,
        }));
        store.learn_types().map_err(refused)?;
        store.learn_pools().map_err(refused)?;
        let inner = store.arc();
        let registration = lazy::register(inner).map_err(|error| {
            refused(StoreError::Refused { kind: ErrorKind::Full, detail: error.to_string() })
        })?;
        inner.control().registration = Some(registration);
        Ok(store)
    }
}
