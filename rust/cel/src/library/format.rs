//! Named formats.
use super::Signature;
pub(super) const TABLE: &[Signature] = &[];
/// A format.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) title: &'static str,
    pub(crate) regex_size: u64,
}
