//! Who holds what, durably: prepared claims in an append-only journal with a compacted snapshot.
//!
//! The ledger refuses a device that another claim holds, whatever the API server says, and answers only when the answer
//! would survive a power cut. It does not know what a device is, how it is prepared, or what `payload` means.
//! The format on disk is documented in docs/ledger.md.
#![forbid(unsafe_code)]

mod disk;
mod entry;
mod error;
mod journal;
mod ledger;
mod record;
mod recovery;
mod state;
mod turn;

pub use disk::{Disk, DiskFile, FileSystem, Turnstile};
pub use entry::{Entry, HeldDevice, Phase};
pub use error::{Conflict, Error, Result};
pub use ledger::Ledger;
pub use recovery::{Damage, Report, Superseded};
pub use turn::Since;
