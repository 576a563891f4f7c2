//! DeviceClass, and the selectors and configuration that classes and claims share.

use serde_json::Value;

use crate::codec::object;
use crate::meta::ObjectMeta;

object! {
    DeviceClass {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
        spec: DeviceClassSpec,
    }
}

object! {
    DeviceClassSpec {
        selectors: Vec<DeviceSelector>,
        config: Vec<DeviceClassConfiguration>,
        extended_resource_name: Option<String>,
    }
}

object! {
    DeviceClassConfiguration {
        opaque: Option<OpaqueDeviceConfiguration>,
    }
}

object! {
    DeviceSelector {
        cel: Option<CelDeviceSelector>,
    }
}

object! {
    CelDeviceSelector {
        expression: String,
    }
}

object! {
    OpaqueDeviceConfiguration {
        driver: String,
        /// The driver's own object; null if it is not set.
        parameters: Value,
    }
}
