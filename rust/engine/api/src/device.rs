//! One device as a ResourceSlice publishes it: attributes, capacity, counters and taints.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::codec::object;
use crate::named::Named;
use crate::node::NodeSelector;
use crate::quantity::Quantity;

object! {
    Device {
        name: String,
        attributes: Named<DeviceAttribute>,
        capacity: Named<DeviceCapacity>,
        consumes_counters: Vec<DeviceCounterConsumption>,
        node_name: Option<String>,
        node_selector: Option<NodeSelector>,
        all_nodes: Option<bool>,
        taints: Vec<DeviceTaint>,
        binds_to_node: Option<bool>,
        binding_conditions: Vec<String>,
        binding_failure_conditions: Vec<String>,
        allow_multiple_allocations: Option<bool>,
        /// Alpha; not interpreted.
        node_allocatable_resources: Value,
    }
}

object! {
    /// Exactly one member is set.
    DeviceAttribute {
        int: Option<i64>,
        bool: Option<bool>,
        string: Option<String>,
        version: Option<String>,
        ints: Option<Vec<i64>>,
        bools: Option<Vec<bool>>,
        strings: Option<Vec<String>>,
        versions: Option<Vec<String>>,
    }
}

object! {
    DeviceCapacity {
        value: Quantity,
        request_policy: Option<CapacityRequestPolicy>,
    }
}

object! {
    CapacityRequestPolicy {
        default: Option<Quantity>,
        valid_values: Vec<Quantity>,
        valid_range: Option<CapacityRequestPolicyRange>,
    }
}

object! {
    CapacityRequestPolicyRange {
        min: Option<Quantity>,
        max: Option<Quantity>,
        step: Option<Quantity>,
    }
}

object! {
    CounterSet {
        name: String,
        counters: BTreeMap<String, Counter>,
    }
}

object! {
    Counter {
        value: Quantity,
    }
}

object! {
    DeviceCounterConsumption {
        counter_set: String,
        counters: BTreeMap<String, Counter>,
        compatibility_groups: Vec<String>,
    }
}

object! {
    DeviceTaint {
        key: String,
        value: String,
        /// `None`, `NoSchedule` or `NoExecute`.
        effect: String,
        /// RFC 3339; set by the API server.
        time_added: Option<String>,
    }
}
