//! The devices, shares and capacity that existing allocations use.

use std::collections::{BTreeMap, HashMap, HashSet};

use dra_api::{DeviceRequestAllocationResult, Quantity, ResourceClaim};

use crate::held::Held;
use crate::query::allocation_of;
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

impl<'a> DeviceId<'a> {
    pub(crate) fn of(result: &'a DeviceRequestAllocationResult) -> Self {
        Self {
            driver: &result.driver,
            pool: &result.pool,
            device: &result.device,
        }
    }
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

impl Holder {
    pub(crate) fn new(claim: &ResourceClaim, result: &DeviceRequestAllocationResult) -> Self {
        Self {
            claim: claim_name(claim),
            uid: claim.metadata.uid.clone(),
            request: result.request.clone(),
            share_id: result.share_id.clone(),
            admin_access: result.admin_access.unwrap_or(false),
            consumed: result.consumed_capacity.clone(),
        }
    }

    /// Whether the claim is the holder.
    pub(crate) fn is_of(&self, (namespace, name): Identity<'_>) -> bool {
        if !self.uid.is_empty() {
            return namespace.is_empty() && self.uid == name;
        }
        if namespace.is_empty() {
            return self.claim == name;
        }
        let rest = self.claim.strip_prefix(namespace);
        rest.and_then(|rest| rest.strip_prefix('/')) == Some(name)
    }
}

/// The use of one device by existing allocations.
#[derive(Debug, Clone, Default)]
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
    pub(crate) fn add(&mut self, holder: Holder) {
        if holder.admin_access {
            // Admin access does not exclude other claims.
        } else if holder.share_id.is_none() {
            self.whole = true;
        } else {
            self.shared = true;
            if !holder.consumed.is_empty() {
                let total = self.capacity.get_or_insert_default();
                add_capacities(total, &holder.consumed);
            }
        }
        self.holders.push(holder);
    }

    /// Whether the device consumes its counters.
    pub(crate) fn any(&self) -> bool {
        self.whole || self.shared
    }
}

/// The use of all devices: by the claims that a cluster holds, and by those of a query.
#[derive(Debug, Default)]
pub(crate) struct InUse<'a> {
    held: Option<&'a Held>,
    /// The devices that the query itself has allocated so far, with their use by held claims.
    placed: Option<&'a Held>,
    /// The devices that claims of the query use, with their use by other claims.
    devices: HashMap<DeviceId<'a>, Use>,
}

impl<'a> InUse<'a> {
    /// Collects the allocations of `claims`. A duplicate claim counts once, and not at all if it is held already.
    pub(crate) fn gather(
        held: Option<&'a Held>,
        placed: Option<&'a Held>,
        claims: &'a [ResourceClaim],
    ) -> Self {
        let mut in_use = Self {
            held,
            placed,
            devices: HashMap::new(),
        };
        let mut seen = HashSet::new();
        for claim in claims {
            let Some(allocation) = allocation_of(claim) else {
                continue;
            };
            let is_known = |identity: Identity<'a>| {
                held.is_some_and(|held| held.contains(identity)) || !seen.insert(identity)
            };
            if identity(claim).is_some_and(is_known) {
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
        devices.get(&id).or_else(|| self.recorded(id))
    }

    fn add(&mut self, claim: &'a ResourceClaim, result: &'a DeviceRequestAllocationResult) {
        let id = DeviceId::of(result);
        let recorded = self.recorded(id);
        self.devices
            .entry(id)
            .or_insert_with(|| recorded.cloned().unwrap_or_default())
            .add(Holder::new(claim, result));
    }

    fn recorded<'b>(&self, id: DeviceId<'b>) -> Option<&'b Use>
    where
        'a: 'b,
    {
        let placed = self.placed.and_then(|placed| placed.of(id));
        placed.or_else(|| self.held?.of(id))
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

/// Identifies a claim: `("", uid)`, or namespace and name of a claim without uid.
pub(crate) type Identity<'a> = (&'a str, &'a str);

/// The identity of a claim; `None` for a claim without a name.
pub(crate) fn identity(claim: &ResourceClaim) -> Option<Identity<'_>> {
    let meta = &claim.metadata;
    if !meta.uid.is_empty() {
        Some(("", &meta.uid))
    } else if !meta.name.is_empty() {
        Some((&meta.namespace, &meta.name))
    } else {
        None
    }
}
