//! Computes the ResourceSlices to publish from an inventory.
//!
//! `desired_slices` returns the slices to publish and takes the published ones into account: devices keep their slice,
//! so that adding or removing one device changes one slice. `diff` returns the writes. Both are pure functions: the API
//! server is never called.

mod current;
mod desired;
mod diff;
mod inventory;
mod name;
mod order;
mod preserve;
mod shard;
mod time;
mod validity;

pub use desired::{DEVICES_PER_SLICE, desired_slices, take_desired_slices};
pub use diff::{Operation, Write, diff};
pub use inventory::{Desired, DeviceInput, Error, Inventory, Naming, Order, PoolInput, Problem};
