//! The `resource.k8s.io/v1` objects, their quantities and their limits.
//!
//! Objects are read leniently (unknown fields are passed over, null is absent) and written as the API server
//! writes them. Whether a user's object is right is a question for `validate`.

mod claim;
mod class;
mod device;
mod meta;
mod node;
mod object;
mod quantity;
mod reader;
mod shape;
mod slice;
mod spelling;
pub mod validate;
mod version;

pub use claim::*;
pub use class::*;
pub use device::*;
pub use meta::*;
pub use node::*;
pub use quantity::{Quantity, QuantityError, QuantityFormat};
pub use reader::from_slice;
pub use shape::{FieldError, Shape};
pub use slice::*;
pub use version::{Version, VersionError};
