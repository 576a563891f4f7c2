//! The inputs of the container hook: a container's state on standard input, and the agent's reply.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::Target;

#[path = "../../../hook/src/oci.rs"]
mod oci;

pub const TARGET: Target = Target {
    name: "oci_state",
    check,
    heap_bytes: 1 << 20,
    cpu: Duration::from_secs(1),
};

/// Objects and arrays within a member's value (docs/how-to/devices/shares.md).
const MAX_DEPTH: usize = 32;

fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let pid = oci::pid(text);
    if let Err(why) = &pid {
        assert!(!why.is_empty(), "{text:?} is refused without a reason");
    }
    check_text(text);
    if serde_json::from_str::<IgnoredAny>(text).is_err() {
        assert!(pid.is_err(), "{text:?} is not JSON, but has pid {pid:?}");
        return;
    }
    let value = match strict(text) {
        Ok(value) => value,
        // serde_json does not represent unpaired surrogates and numbers beyond a double.
        Err(why)
            if why.contains("surrogate")
                || why.contains("hex escape")
                || why.contains("unicode") =>
        {
            return;
        }
        Err(why) if why.contains("number out of range") => return,
        Err(why) => {
            assert!(pid.is_err(), "{text:?} has pid {pid:?}: {why}");
            return;
        }
    };
    let wanted = value
        .is_object()
        .then(|| value["pid"].as_u64())
        .flatten()
        .and_then(|pid| u32::try_from(pid).ok())
        .filter(|pid| *pid > 0);
    assert_eq!(pid.ok(), wanted, "the pid of {text:?}");
    if value.is_object() {
        assert_eq!(
            oci::is_true(text, "result"),
            value["result"] == true,
            "the result of {text:?}"
        );
        let said = value["failure"]
            .is_object()
            .then(|| value["failure"]["what"].as_str())
            .flatten();
        assert_eq!(
            oci::nested_string(text, "failure", "what").as_deref(),
            said,
            "what failed of {text:?}"
        );
    }
}

/// Checks that the encoded text decodes to the same text, also with serde_json.
fn check_text(text: &str) {
    let mut answer = String::from("{\"failure\":{\"what\":");
    oci::write_string(&mut answer, text);
    answer.push_str("}}");
    assert_eq!(
        oci::nested_string(&answer, "failure", "what").as_deref(),
        Some(text),
        "{answer} is read as another text"
    );
    let value: Value = serde_json::from_str(&answer).expect("what was written is JSON");
    assert_eq!(value["failure"]["what"], text, "{answer}");
}

/// The value. Duplicate names and excessive depth are errors.
fn strict(text: &str) -> Result<Value, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Strict(0)
        .deserialize(&mut reader)
        .map_err(|error| error.to_string())
}

struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        // The state is an object of depth 0, and its members' values may have 32 levels.
        if self.0 > MAX_DEPTH + 1 {
            return Err(serde::de::Error::custom("too deep"));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(Strict(self.0 + 1))? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut names = BTreeSet::new();
        let mut values = serde_json::Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(serde::de::Error::custom("a name is there twice"));
            }
            values.insert(name, members.next_value_seed(Strict(self.0 + 1))?);
        }
        Ok(values.into())
    }
}
