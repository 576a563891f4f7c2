//! JSON text as Python values, for dumps of a cluster with a hundred thousand devices.
//!
//! A key that an object has twice is an error, as is everything that is not JSON or that a double cannot hold.

use std::collections::HashMap;
use std::fmt;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Bytes of a text that is stored once for all places that have it: names of fields, and values that devices share.
const MAX_SHARED_BYTES: usize = 64;
/// How many different texts are stored once.
const MAX_SHARED_TEXTS: usize = 1 << 16;
/// From here on, a number may have been an integer of more than 64 bits, which has no JSON value.
const MIN_LARGE: f64 = 9_223_372_036_854_775_808.0;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_json, module)?)
}

#[pyfunction]
fn read_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let invalid = |error: serde_json::Error| PyValueError::new_err(error.to_string());
    let mut json = serde_json::Deserializer::from_str(text);
    let mut reader = Reader {
        py,
        texts: HashMap::new(),
    };
    let value = reader.deserialize(&mut json).map_err(invalid)?;
    json.end().map_err(invalid)?;
    Ok(value)
}

/// Makes Python values.
struct Reader<'py> {
    py: Python<'py>,
    texts: HashMap<Box<str>, Bound<'py, PyAny>>,
}

impl<'py> Reader<'py> {
    fn text(&mut self, text: &str) -> Bound<'py, PyAny> {
        if text.len() > MAX_SHARED_BYTES {
            return PyString::new(self.py, text).into_any();
        }
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let value = PyString::new(self.py, text).into_any();
        if self.texts.len() < MAX_SHARED_TEXTS {
            self.texts.insert(text.into(), value.clone());
        }
        value
    }

    fn value<E: Error>(&self, value: impl IntoPyObject<'py>) -> Result<Bound<'py, PyAny>, E> {
        value.into_bound_py_any(self.py).map_err(E::custom)
    }
}

impl<'de, 'py> DeserializeSeed<'de> for &mut Reader<'py> {
    type Value = Bound<'py, PyAny>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, 'py> Visitor<'de> for &mut Reader<'py> {
    type Value = Bound<'py, PyAny>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        self.value(self.py.None())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        self.value(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.value(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        self.value(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        // An integer -0 arrives here too.
        if value.abs() >= MIN_LARGE || value == 0.0 && value.is_sign_negative() {
            return Err(E::custom("the type of a number is not known"));
        }
        self.value(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let list = PyList::empty(self.py);
        while let Some(item) = items.next_element_seed(&mut *self)? {
            list.append(item).map_err(A::Error::custom)?;
        }
        Ok(list.into_any())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let object = PyDict::new(self.py);
        let mut count = 0;
        while let Some(key) = members.next_key_seed(&mut *self)? {
            let value = members.next_value_seed(&mut *self)?;
            object.set_item(key, value).map_err(A::Error::custom)?;
            count += 1;
        }
        if object.len() != count {
            return Err(A::Error::custom("a key is there twice"));
        }
        Ok(object.into_any())
    }
}
