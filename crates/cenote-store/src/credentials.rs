//! The user who asks: user and groups, what the permissions of pools allow, and who may change
//! these.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::Access;
use cenote_layout::catalog::PoolRecord;
use cenote_layout::error_kind::ErrorKind;

/// What a change of a pool's owner, group and mode says; `None` leaves as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermissionChange {
    /// The user that owns it.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// Permission bits, as of a file; at most 0o777.
    pub permissions: Option<u32>,
}

/// What a client may do, as the caller knows it from the system.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Whether a pool's permissions allow this, by the rules of files: the first class that fits
    /// decides, and the superuser may all.
    #[must_use]
    pub fn allow(&self, pool: &PoolRecord, access: Access) -> bool {
        if self.uid == 0 {
            return true;
        }
        let class = if pool.uid == self.uid {
            6
        } else if pool.gid == self.gid || self.groups.contains(&pool.gid) {
            3
        } else {
            0
        };
        let wanted = match access {
            Access::ReadOnly => 4,
            // What may be written can be read through the mapping.
            Access::ReadWrite | Access::Shared => 6,
        };
        pool.permissions >> class & wanted == wanted
    }

    /// Whether they allow to give away what belongs to these, as a change says. Only the superuser
    /// gives to another user. To give to a group, the caller must be in it.
    pub(crate) fn may_give(&self, change: &PermissionChange, (uid, gid): (u32, u32)) -> bool {
        let stays = |to: Option<u32>, of: u32| to.is_none_or(|to| to == of);
        let group = change.gid.is_some_and(|to| to == self.gid || self.groups.contains(&to));
        self.uid == 0 || (stays(change.uid, uid) && (stays(change.gid, gid) || group))
    }

    /// Whether they are those of the pool's owner, or of the superuser.
    #[must_use]
    pub fn own(&self, pool: &PoolRecord) -> bool {
        self.uid == 0 || self.uid == pool.uid
    }
}

pub(crate) fn bad_permissions(bits: u32) -> StoreError {
    StoreError::Refused {
        kind: ErrorKind::Misuse,
        detail: format!("{bits:#o} are no permissions of a pool: take 0 to 0o777"),
    }
}

/// The user and the group that this process acts for.
pub(crate) fn us() -> (u32, u32) {
    (cenote_sys::process::uid(), cenote_sys::process::gid())
}
