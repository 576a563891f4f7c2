//! The `resource.k8s.io/v1` objects, their quantities and their limits.
//!
//! Decoding is lenient: unknown fields are ignored and null counts as absent. Objects are encoded as the API server
//! encodes them. `validate` checks a user's object strictly.

mod claim;
mod class;
mod codec;
mod device;
mod meta;
mod named;
mod node;
mod quantity;
mod reader;
mod slice;
mod suggest;
pub mod validate;
mod version;

pub use claim::*;
pub use class::*;
pub use codec::{ApiType, FieldError};
pub use device::*;
pub use meta::*;
pub use named::{Named, Shared};
pub use node::*;
pub use quantity::{Quantity, QuantityError, QuantityFormat};
pub use reader::from_slice;
pub use slice::*;
pub use version::{Version, VersionError};
