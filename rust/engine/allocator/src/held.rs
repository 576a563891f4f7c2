//! The claims that hold devices in a cluster, with the use of each device.

use std::collections::HashMap;
use std::sync::Arc;

use dra_api::{AllocationResult, ResourceClaim};

use crate::in_use::{DeviceId, Holder, Identity, Use, identity};

/// Driver, pool and device.
type Name = (String, String, String);
/// By device.
type PoolUse = HashMap<String, Use>;

/// Held claims. A clone is cheap compared with the number of claims: it shares the use of each pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// By driver and pool.
    devices: HashMap<String, HashMap<String, Arc<PoolUse>>>,
    /// The devices of each claim, by its identity.
    claims: HashMap<String, HashMap<String, Arc<[Name]>>>,
}

impl Held {
    pub(crate) fn of(&self, id: DeviceId<'_>) -> Option<&Use> {
        self.devices.get(id.driver)?.get(id.pool)?.get(id.device)
    }

    pub(crate) fn contains(&self, (namespace, name): Identity<'_>) -> bool {
        self.claims
            .get(namespace)
            .is_some_and(|claims| claims.contains_key(name))
    }

    /// The number of claims.
    pub(crate) fn len(&self) -> usize {
        self.claims.values().map(HashMap::len).sum()
    }

    /// Adds the allocation of a claim, in the place of its earlier one.
    pub(crate) fn add(&mut self, claim: &ResourceClaim, allocation: &AllocationResult) {
        let Some(identity) = identity(claim) else {
            return;
        };
        self.remove(identity);
        let mut names = Vec::new();
        for result in &allocation.devices.results {
            let pools = self.devices.entry(result.driver.clone()).or_default();
            let pool = pools.entry(result.pool.clone()).or_default();
            let used = Arc::make_mut(pool)
                .entry(result.device.clone())
                .or_default();
            used.add(Holder::new(claim, result));
            names.push((
                result.driver.clone(),
                result.pool.clone(),
                result.device.clone(),
            ));
        }
        self.claims
            .entry(identity.0.to_owned())
            .or_default()
            .insert(identity.1.to_owned(), names.into());
    }

    /// Adds devices on top of those that are held `below`, for [`crate::in_use::InUse::placed`]. They cannot be removed.
    pub(crate) fn place(
        &mut self,
        below: Option<&Self>,
        claim: &ResourceClaim,
        allocation: &AllocationResult,
    ) {
        for result in &allocation.devices.results {
            let pools = self.devices.entry(result.driver.clone()).or_default();
            let pool = pools.entry(result.pool.clone()).or_default();
            Arc::make_mut(pool)
                .entry(result.device.clone())
                .or_insert_with(|| {
                    let known = below.and_then(|below| below.of(DeviceId::of(result)));
                    known.cloned().unwrap_or_default()
                })
                .add(Holder::new(claim, result));
        }
    }

    /// Removes a claim. Returns whether it was held.
    pub(crate) fn remove(&mut self, (namespace, name): Identity<'_>) -> bool {
        let Some(claims) = self.claims.get_mut(namespace) else {
            return false;
        };
        let Some(names) = claims.remove(name) else {
            return false;
        };
        if claims.is_empty() {
            self.claims.remove(namespace);
        }
        for (driver, pool, device) in names.iter() {
            self.remove_from(driver, pool, device, (namespace, name));
        }
        true
    }

    /// Removes a claim from the use of a device. What others consume is summed up again: a sum keeps the form of its
    /// first amount.
    fn remove_from(&mut self, driver: &str, pool: &str, device: &str, claim: Identity<'_>) {
        let Some(pools) = self.devices.get_mut(driver) else {
            return;
        };
        let Some(uses) = pools.get_mut(pool) else {
            return;
        };
        let uses = Arc::make_mut(uses);
        if let Some(used) = uses.remove(device) {
            let mut rest = Use::default();
            used.holders
                .into_iter()
                .filter(|holder| !holder.is_of(claim))
                .for_each(|holder| rest.add(holder));
            if !rest.holders.is_empty() {
                uses.insert(device.to_owned(), rest);
            }
        }
        if uses.is_empty() {
            pools.remove(pool);
            if pools.is_empty() {
                self.devices.remove(driver);
            }
        }
    }
}
