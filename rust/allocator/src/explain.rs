//! placeholder
use crate::question::Question;
#[derive(Debug)]
pub struct Explanation;
pub fn explain(_q: &Question) -> Explanation {
    Explanation
}
impl serde::Serialize for Explanation {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_unit()
    }
}
