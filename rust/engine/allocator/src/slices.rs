//! The slices of a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::node::has_per_device_node_selection;
use crate::published::Published;

fn node_of(slice: &Published) -> &str {
    slice.spec.node_name.as_deref().unwrap_or_default()
}

/// The names of nodes that a slice has, for itself or for its devices.
fn node_names(slice: &Published) -> impl Iterator<Item = &str> {
    let per_device = has_per_device_node_selection(slice);
    let devices = slice.spec.devices.iter().filter(move |_| per_device);
    let of_devices = devices.filter_map(|device| device.node_name.as_deref());
    std::iter::once(node_of(slice))
        .chain(of_devices)
        .filter(|name| !name.is_empty())
}

/// Slices by name, node and pool. A slice keeps its place in the order when it is replaced: the order matters for slices
/// of one pool with different numbers of slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct SliceIndex {
    next: u64,
    slices: BTreeMap<u64, Arc<Published>>,
    by_name: HashMap<String, u64>,
    /// Slices without a node name are those of "".
    by_node: HashMap<String, BTreeSet<u64>>,
    /// By driver and pool.
    by_pool: HashMap<String, HashMap<String, BTreeSet<u64>>>,
    /// The number of slices that name a node.
    names: BTreeMap<String, usize>,
}

impl SliceIndex {
    pub(crate) fn len(&self) -> usize {
        self.slices.len()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The nodes that slices name, or their devices.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Adds a slice, in the place of the one with its name.
    pub(crate) fn put(&mut self, slice: Published) {
        let name = slice.metadata.name.clone();
        let id = match self.by_name.get(&name) {
            Some(&id) => {
                self.take(id);
                id
            }
            None => {
                self.next += 1;
                self.by_name.insert(name, self.next);
                self.next
            }
        };
        let node = node_of(&slice).to_owned();
        self.by_node.entry(node).or_default().insert(id);
        let pools = self.by_pool.entry(slice.spec.driver.clone()).or_default();
        let pool = pools.entry(slice.spec.pool.name.clone()).or_default();
        pool.insert(id);
        for name in node_names(&slice).collect::<BTreeSet<_>>() {
            *self.names.entry(name.to_owned()).or_default() += 1;
        }
        self.slices.insert(id, Arc::new(slice));
    }

    /// Removes a slice by its name. Returns whether there was one.
    pub(crate) fn delete(&mut self, name: &str) -> bool {
        let id = self.by_name.remove(name);
        id.is_some_and(|id| {
            self.take(id);
            true
        })
    }

    fn take(&mut self, id: u64) {
        let Some(slice) = self.slices.remove(&id) else {
            return;
        };
        remove(&mut self.by_node, node_of(&slice), |ids| {
            ids.remove(&id);
            ids.is_empty()
        });
        remove(&mut self.by_pool, &slice.spec.driver, |pools| {
            remove(pools, &slice.spec.pool.name, |ids| {
                ids.remove(&id);
                ids.is_empty()
            });
            pools.is_empty()
        });
        for name in node_names(&slice).collect::<BTreeSet<_>>() {
            if let Some(count) = self.names.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(name);
                }
            }
        }
    }

    /// The slices that may be usable on a node: first those with the node's name, then those without a name.
    pub(crate) fn for_node(&self, node: &str) -> Vec<&Published> {
        let own = self.by_node.get(node).filter(|_| !node.is_empty());
        let shared = self.by_node.get("");
        self.resolve(own.into_iter().chain(shared).flatten())
    }

    /// All slices of a pool, on any node.
    pub(crate) fn of_pool(&self, driver: &str, pool: &str) -> Vec<&Published> {
        let ids = self.by_pool.get(driver).and_then(|pools| pools.get(pool));
        self.resolve(ids.into_iter().flatten())
    }

    fn resolve<'a>(&'a self, ids: impl Iterator<Item = &'a u64>) -> Vec<&'a Published> {
        ids.filter_map(|id| self.slices.get(id))
            .map(|slice| &**slice)
            .collect()
    }
}

/// Changes an entry, and removes it if it is then empty.
fn remove<V>(map: &mut HashMap<String, V>, key: &str, change: impl FnOnce(&mut V) -> bool) {
    if map.get_mut(key).is_some_and(change) {
        map.remove(key);
    }
}
