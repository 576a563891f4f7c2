//! Converts values to JSON.

use serde_json::{Map as Object, Number, Value as Json};

use crate::budget::Budget;
use crate::fault::Fault;
use crate::number;
use crate::time;
use crate::value::Value;

/// Memory of a JSON value, including the unused capacity of a growing list.
const JSON_BYTES: usize = 2 * size_of::<Json>();

/// The JSON form: quantities and versions as their text, an empty optional as null.
pub(crate) fn to_json(value: &Value, budget: &mut Budget) -> Result<Json, Fault> {
    budget.charge(JSON_BYTES)?;
    Ok(match value {
        Value::Null | Value::Optional(None) => Json::Null,
        Value::Optional(Some(inner)) => budget.within(|budget| to_json(inner, budget))?,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Json::from(*value),
        Value::Uint(value) => Json::from(*value),
        Value::Double(value) => Number::from_f64(*value)
            .map_or_else(|| Json::String(number::shortest(*value)), Json::Number),
        Value::String(text) => {
            budget.charge(text.len())?;
            Json::String(text.to_string())
        }
        Value::Duration(nanos) => Json::String(time::duration_text(*nanos)),
        Value::Timestamp(time) => Json::String(time.to_string()),
        Value::Type(name) => Json::String(name.to_string()),
        Value::Quantity(amount) => {
            budget.charge(amount.quantity.heap_bytes().saturating_mul(3))?;
            Json::String(amount.quantity.to_string())
        }
        Value::Semver(version) => Json::String(version.to_string()),
        Value::Url(url) => {
            budget.charge(url.text().len())?;
            Json::String(url.text().to_owned())
        }
        Value::Ip(ip) => Json::String(ip.to_string()),
        Value::Cidr(ip, bits) => Json::String(format!("{ip}/{bits}")),
        Value::List(list) => Json::Array(budget.within(|budget| {
            let items = list.items(budget)?;
            items.iter().map(|item| to_json(item, budget)).collect()
        })?),
        Value::Map(map) => Json::Object(budget.within(|budget| {
            let mut object = Object::new();
            for (key, value) in map.entries(budget)?.iter() {
                budget.charge_entry()?;
                if let Value::String(text) = key {
                    budget.charge(text.len())?;
                }
                object.insert(key_text(key)?, to_json(value, budget)?);
            }
            Ok(object)
        })?),
        Value::Bytes(_) | Value::Format(_) => {
            return Err(Fault::new(format!(
                "a value of type {} has no JSON form",
                value.type_name()
            )));
        }
    })
}

fn key_text(key: &Value) -> Result<String, Fault> {
    match key {
        Value::String(text) => Ok(text.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Int(value) => Ok(value.to_string()),
        Value::Uint(value) => Ok(value.to_string()),
        other => Err(Fault::new(format!(
            "a key of type {} has no JSON form",
            other.type_name()
        ))),
    }
}
