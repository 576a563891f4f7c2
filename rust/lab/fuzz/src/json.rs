//! Inputs that are JSON objects of a known type.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Decodes an API object as the agent does. `None` if it is invalid.
pub(crate) fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    dra_api::from_slice(data).ok()
}

/// Asserts that decoding an encoded value returns the same value.
pub(crate) fn check_round_trip<T: Serialize + DeserializeOwned>(value: &T) {
    let written = serde_json::to_value(value).expect("it is JSON");
    let read: T = serde_json::from_value(written.clone())
        .unwrap_or_else(|error| panic!("what was written is not read: {error}: {written}"));
    let again = serde_json::to_value(&read).expect("it is JSON");
    assert_eq!(again, written, "the value changes by encoding and decoding");
}
