//! URLs.
use super::Signature;
pub(super) const TABLE: &[Signature] = &[];
/// A URL.
#[derive(Debug)]
pub(crate) struct Url {
    text: String,
}
impl Url {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}
