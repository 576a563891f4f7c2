//! ResourceClaim and ResourceClaimTemplate: requests and allocation.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::class::{DeviceSelector, OpaqueDeviceConfiguration};
use crate::codec::object;
use crate::meta::ObjectMeta;
use crate::node::NodeSelector;
use crate::quantity::Quantity;

/// `allocationMode` that requests a number of devices; the default for an empty mode.
pub const EXACT_COUNT: &str = "ExactCount";
/// `allocationMode` that requests every matching device.
pub const ALL: &str = "All";

object! {
    ResourceClaim {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
        spec: ResourceClaimSpec,
        status: Option<ResourceClaimStatus>,
    }
}

object! {
    ResourceClaimTemplate {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
        spec: ResourceClaimTemplateSpec,
    }
}

object! {
    ResourceClaimTemplateSpec {
        metadata: Option<ObjectMeta>,
        spec: ResourceClaimSpec,
    }
}

object! {
    ResourceClaimSpec {
        devices: DeviceClaim,
    }
}

object! {
    DeviceClaim {
        requests: Vec<DeviceRequest>,
        constraints: Vec<DeviceConstraint>,
        config: Vec<DeviceClaimConfiguration>,
    }
}

object! {
    DeviceRequest {
        name: String,
        exactly: Option<ExactDeviceRequest>,
        first_available: Vec<DeviceSubRequest>,
    }
}

object! {
    ExactDeviceRequest {
        device_class_name: String,
        selectors: Vec<DeviceSelector>,
        /// Empty means `ExactCount`.
        allocation_mode: String,
        /// 0 means that it is not set; the default in mode `ExactCount` is 1.
        count: i64,
        admin_access: Option<bool>,
        tolerations: Vec<DeviceToleration>,
        capacity: Option<CapacityRequirements>,
        derived_attributes: Vec<DeviceDerivedAttribute>,
    }
}

object! {
    DeviceSubRequest {
        name: String,
        device_class_name: String,
        selectors: Vec<DeviceSelector>,
        allocation_mode: String,
        count: i64,
        tolerations: Vec<DeviceToleration>,
        capacity: Option<CapacityRequirements>,
        derived_attributes: Vec<DeviceDerivedAttribute>,
    }
}

object! {
    DeviceDerivedAttribute {
        name: String,
        expression: String,
    }
}

object! {
    CapacityRequirements {
        requests: BTreeMap<String, Quantity>,
    }
}

object! {
    DeviceConstraint {
        requests: Vec<String>,
        match_attribute: Option<String>,
        distinct_attribute: Option<String>,
    }
}

object! {
    DeviceClaimConfiguration {
        requests: Vec<String>,
        opaque: Option<OpaqueDeviceConfiguration>,
    }
}

object! {
    DeviceToleration {
        key: String,
        /// `Exists` or `Equal`; empty means `Equal`.
        operator: String,
        value: String,
        effect: String,
        toleration_seconds: Option<i64>,
    }
}

object! {
    ResourceClaimStatus {
        allocation: Option<AllocationResult>,
        reserved_for: Vec<ResourceClaimConsumerReference>,
        devices: Vec<AllocatedDeviceStatus>,
    }
}

object! {
    ResourceClaimConsumerReference {
        api_group: String,
        resource: String,
        name: String,
        uid: String,
    }
}

object! {
    AllocationResult {
        devices: DeviceAllocationResult,
        node_selector: Option<NodeSelector>,
        allocation_timestamp: Option<String>,
    }
}

object! {
    DeviceAllocationResult {
        results: Vec<DeviceRequestAllocationResult>,
        config: Vec<DeviceAllocationConfiguration>,
    }
}

object! {
    DeviceRequestAllocationResult {
        /// `main`, or `main/sub` for a subrequest of `firstAvailable`.
        request: String,
        driver: String,
        pool: String,
        device: String,
        admin_access: Option<bool>,
        tolerations: Vec<DeviceToleration>,
        binding_conditions: Vec<String>,
        binding_failure_conditions: Vec<String>,
        share_id = "shareID": Option<String>,
        consumed_capacity: BTreeMap<String, Quantity>,
        skip_node_operations: Vec<String>,
    }
}

object! {
    DeviceAllocationConfiguration {
        /// `FromClass` or `FromClaim`.
        source: String,
        requests: Vec<String>,
        opaque: Option<OpaqueDeviceConfiguration>,
    }
}

object! {
    AllocatedDeviceStatus {
        driver: String,
        pool: String,
        device: String,
        share_id = "shareID": Option<String>,
        conditions: Vec<Value>,
        data: Value,
        network_data: Value,
    }
}
