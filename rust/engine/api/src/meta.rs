//! The metadata of every object: kind, names, owners and versions.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::codec::object;

/// The API version of every object in this crate.
pub const API_VERSION: &str = "resource.k8s.io/v1";

object! {
    ObjectMeta {
        name: String,
        generate_name: String,
        namespace: String,
        uid: String,
        resource_version: String,
        generation: i64,
        creation_timestamp: String,
        deletion_timestamp: Option<String>,
        deletion_grace_period_seconds: Option<i64>,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<OwnerReference>,
        finalizers: Vec<String>,
        self_link: String,
        /// Printed by kubectl; not used in this crate.
        managed_fields: Vec<Value>,
    }
}

object! {
    OwnerReference {
        api_version: String,
        kind: String,
        name: String,
        uid: String,
        controller: Option<bool>,
        block_owner_deletion: Option<bool>,
    }
}
