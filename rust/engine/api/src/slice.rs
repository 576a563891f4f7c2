//! ResourceSlice: a part of a pool of devices.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::codec::object;
use crate::codec::{ApiType, Check, FieldError, check_members, null_as_default};
use crate::device::{CounterSet, Device};
use crate::meta::ObjectMeta;
use crate::node::NodeSelector;

object! {
    ResourceSlice {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
        spec: ResourceSliceSpec,
    }
}

object! {
    ResourceSliceSpec {
        driver: String,
        pool: ResourcePool,
        node_name: Option<String>,
        node_selector: Option<NodeSelector>,
        all_nodes: Option<bool>,
        devices: Vec<Device>,
        per_device_node_selection: Option<bool>,
        shared_counters: Vec<CounterSet>,
        partition_type_attribute: Option<String>,
        skip_node_operations: Vec<String>,
    }
}

/// The pool that a slice belongs to. Zero values are encoded, because generation 0 is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourcePool {
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub generation: i64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub resource_slice_count: i64,
}

impl ApiType for ResourcePool {
    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        let known: [(String, Check); 3] = [
            ("name".to_owned(), String::check),
            ("generation".to_owned(), i64::check),
            ("resourceSliceCount".to_owned(), i64::check),
        ];
        check_members(value, field, errors, &known);
    }
}
