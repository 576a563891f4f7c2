//! Memory that one value may take.
//!
//! Kubernetes counts some operations as cheap whatever they make, and would run out of memory where this crate says that an
//! expression is too expensive.

use crate::fault::Fault;

/// Bytes of one string.
const MOST_BYTES: usize = 32 << 20;
/// Elements of one list, and elements that one evaluation copies into lists.
pub(crate) const MOST_ELEMENTS: usize = 2_000_000;

/// An error where a string would be too long.
pub(crate) fn for_bytes(count: usize) -> Result<(), Fault> {
    if count > MOST_BYTES {
        Err(Fault::TooExpensive)
    } else {
        Ok(())
    }
}

/// An error where a list would be too long.
pub(crate) fn for_elements(count: usize) -> Result<(), Fault> {
    if count > MOST_ELEMENTS {
        Err(Fault::TooExpensive)
    } else {
        Ok(())
    }
}
