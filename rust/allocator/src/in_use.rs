//! The devices, shares and capacity that existing allocations use.

use std::collections::{BTreeMap, HashMap, HashSet};

use dra_api::{DeviceRequestAllocationResult, Quantity, ResourceClaim};

use crate::request::claim_name;

/// Consumed capacity by its name.
pub(crate) type Capacities = BTreeMap<String, Quantity>;

/// A device's name: driver, pool, device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId<'a> {
    pub(crate) driver: &'a str,
    pub(crate) pool: &'a str,
    pub(crate) device: &'a str,
}

impl std::fmt::Display for DeviceId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// A claim that holds a device, or a share of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Holder {
    /// `namespace/name`.
    pub claim: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    pub request: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// Admin access does not exclude other claims.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub admin_access: bool,
    /// The consumption of the share, by capacity name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed: BTreeMap<String, Quantity>,
}

/// The use of one device by existing allocations.
#[derive(Debug, Default)]
pub(crate) struct Use {
    /// One claim uses the device exclusively.
    pub(crate) whole: bool,
    /// Claims use shares of the device, which may have no consumption.
    pub(crate) shared: bool,
    /// The consumption of all shares; `None` if no share has a consumption.
    pub(crate) capacity: Option<Capacities>,
    pub(crate) holders: Vec<Holder>,
}

impl Use {
    /// Whether the device consumes its counters.
    pub(crate) fn any(&self) -> bool {
        self.whole || self.shared
    }
}

/// The use of all devices.
#[derive(Debug, Default)]
pub(crate) struct InUse<'a> {
    devices: HashMap<DeviceId<'a>, Use>,
}

impl<'a> InUse<'a> {
    /// Collects the allocations of `claims`. A duplicate claim counts once.
    pub(crate) fn gather(claims: impl Iterator<Item = &'a ResourceClaim>) -> Self {
        let mut in_use = Self::default();
        let mut seen = HashSet::new();
        for claim in claims {
            let allocation = claim
                .status
                .as_ref()
                .and_then(|status| status.allocation.as_ref());
            let Some(allocation) = allocation else {
                continue;
            };
            if identity(claim).is_some_and(|identity| !seen.insert(identity)) {
                continue;
            }
            for result in &allocation.devices.results {
                in_use.add(claim, result);
            }
        }
        in_use
    }

    pub(crate) fn of<'b>(&'b self, id: DeviceId<'b>) -> Option<&'b Use> {
        let devices: &'b HashMap<DeviceId<'b>, Use> = &self.devices;
        devices.get(&id)
    }

    fn add(&mut self, claim: &'a ResourceClaim, result: &'a DeviceRequestAllocationResult) {
        let id = DeviceId {
            driver: &result.driver,
            pool: &result.pool,
            device: &result.device,
        };
        let used = self.devices.entry(id).or_default();
        let admin_access = result.admin_access.unwrap_or(false);
        used.holders.push(Holder {
            claim: claim_name(claim),
            uid: claim.metadata.uid.clone(),
            request: result.request.clone(),
            share_id: result.share_id.clone(),
            admin_access,
            consumed: result.consumed_capacity.clone(),
        });
        if admin_access {
            return;
        }
        if result.share_id.is_none() {
            used.whole = true;
            return;
        }
        used.shared = true;
        if !result.consumed_capacity.is_empty() {
            let total = used.capacity.get_or_insert_default();
            add_capacities(total, &result.consumed_capacity);
        }
    }
}

pub(crate) fn add_capacities(total: &mut Capacities, more: &Capacities) {
    for (name, quantity) in more {
        match total.get_mut(name) {
            Some(sum) => sum.add(quantity),
            None => {
                total.insert(name.clone(), quantity.clone());
            }
        }
    }
}

/// The identity of a claim; `None` for a claim without a name.
fn identity(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let meta = &claim.metadata;
    if !meta.uid.is_empty() {
        Some(("", &meta.uid))
    } else if !meta.name.is_empty() {
        Some((&meta.namespace, &meta.name))
    } else {
        None
    }
}
