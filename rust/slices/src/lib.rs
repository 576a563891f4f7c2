//! From an inventory to the ResourceSlices to publish.
//!
//! `desire` decides what should be published, knowing what is: devices keep their slice, so that one device more or
//! less changes one slice. `diff` says which writes lead there. Both are pure: nothing here talks to an API server.

mod carry;
mod current;
mod desire;
mod diff;
mod inventory;
mod name;
mod order;
mod shard;
mod sound;
mod time;

pub use desire::{DEVICES_PER_SLICE, desire};
pub use diff::{Operation, Write, diff};
pub use inventory::{Desired, DeviceInput, Error, Inventory, Naming, Order, PoolInput, Problem};
