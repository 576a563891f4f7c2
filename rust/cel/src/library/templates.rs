//! To come.
use super::Signature;
pub(super) const TABLE: &[Signature] = &[];
