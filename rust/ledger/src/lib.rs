//! A durable record of prepared claims and their devices: an append-only journal and a compacted snapshot.
//!
//! The ledger refuses a device that another claim holds, regardless of the API server, and returns only when its result
//! survives a power cut. It does not interpret devices or `payload`, and does not prepare devices.
//! The format on disk is documented in docs/explanation/ledger.md.
#![forbid(unsafe_code)]

mod disk;
mod entry;
mod error;
mod journal;
mod lease;
mod ledger;
mod record;
mod recovery;
mod state;

pub use disk::{Disk, DiskFile, FileSystem, QueueLock};
pub use entry::{Entry, HeldDevice, Phase};
pub use error::{Conflict, Error, Result};
pub use lease::LeaseHistory;
pub use ledger::Ledger;
pub use recovery::{Damage, Report, SupersededClaim};
