//! The `device` variable of an expression.

use std::sync::Arc;

use dra_api::{Device, DeviceAttribute, Quantity};

use crate::error::EvalError;
use crate::library::{quantity, semver};
use crate::map::Entries;
use crate::value::{Map, Value};

/// A device and its driver, ready for any number of expressions.
#[derive(Clone, Debug)]
pub struct DeviceInput {
    value: Value,
}

impl DeviceInput {
    /// Converts a device. Names without a domain are in the domain of the driver.
    ///
    /// # Errors
    ///
    /// An attribute is invalid. Kubernetes cannot evaluate any expression on such a device.
    pub fn new(driver: &str, device: &Device) -> Result<Self, EvalError> {
        let driver: Arc<str> = Arc::from(driver);
        let mut attributes = Domains::default();
        for (name, attribute) in device.attributes.iter() {
            let value = attribute_value(attribute).map_err(|message| EvalError::Device {
                attribute: name.to_owned(),
                message,
            })?;
            attributes.add(&driver, name, value);
        }
        let mut capacity = Domains::default();
        for (name, entry) in device.capacity.iter() {
            capacity.add(&driver, name, quantity::read(as_published(&entry.value)));
        }
        let shared = device.allow_multiple_allocations.unwrap_or(false);
        let mut fields = Entries::default();
        fields.push_name(&Arc::from("driver"), Value::String(driver));
        fields.push_name(&Arc::from("allowMultipleAllocations"), Value::Bool(shared));
        fields.push_name(&Arc::from("attributes"), attributes.into_value());
        fields.push_name(&Arc::from("capacity"), capacity.into_value());
        Ok(Self {
            value: Value::Map(Map::fixed(fields)),
        })
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

/// Names by their domain.
#[derive(Default)]
struct Domains {
    domains: Vec<(Arc<str>, Entries)>,
}

impl Domains {
    fn add(&mut self, driver: &Arc<str>, name: &str, value: Value) {
        let (domain, id) = match name.split_once('/') {
            Some((domain, id)) => (Arc::from(domain), id),
            None => (Arc::clone(driver), name),
        };
        let at = match self.domains.iter().position(|(known, _)| *known == domain) {
            Some(at) => at,
            None => {
                self.domains.push((domain, Entries::default()));
                self.domains.len() - 1
            }
        };
        let entries = &mut self.domains[at].1;
        let id: Arc<str> = Arc::from(id);
        let key = Value::String(Arc::clone(&id));
        // The same name with and without the driver's domain: Kubernetes does not define which one is used.
        if !entries.contains(&key) {
            entries.push_name(&id, value);
        }
    }

    fn into_value(self) -> Value {
        let mut all = Entries::with_empty_for_unknown();
        for (domain, entries) in self.domains {
            all.push_name(&domain, Value::Map(Map::fixed(entries)));
        }
        Value::Map(Map::fixed(all))
    }
}

/// A quantity in its canonical form, as the API server sends it to the scheduler.
fn as_published(quantity: &Quantity) -> Quantity {
    Quantity::parse(&quantity.to_string()).unwrap_or_else(|_| quantity.clone())
}

fn attribute_value(attribute: &DeviceAttribute) -> Result<Value, String> {
    let version = |text: &String| {
        semver::parse(text).map_err(|_| format!("{text:?} is not a semantic version"))
    };
    if let Some(values) = &attribute.ints {
        return Ok(Value::list(
            values.iter().copied().map(Value::Int).collect(),
        ));
    }
    if let Some(values) = &attribute.bools {
        return Ok(Value::list(
            values.iter().copied().map(Value::Bool).collect(),
        ));
    }
    if let Some(values) = &attribute.strings {
        return Ok(Value::list(
            values.iter().map(|text| Value::string(text)).collect(),
        ));
    }
    if let Some(values) = &attribute.versions {
        return Ok(Value::list(
            values.iter().map(version).collect::<Result<_, _>>()?,
        ));
    }
    if let Some(value) = attribute.int {
        return Ok(Value::Int(value));
    }
    if let Some(value) = attribute.bool {
        return Ok(Value::Bool(value));
    }
    if let Some(text) = &attribute.string {
        return Ok(Value::string(text));
    }
    match &attribute.version {
        Some(text) => version(text),
        None => Err("has no known value".to_owned()),
    }
}
