//! A whole cluster: slices, classes, nodes and held claims, decoded and indexed once for any number of queries.
//!
//! A query works on the state of its start. A change neither waits for running queries nor affects them.

mod copies;
mod objects;
mod reasons;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dra_api::{
    DeviceAttribute, DeviceCapacity, DeviceClass, Node, ObjectMeta, ResourceClaim, ResourceSlice,
    Shared,
};
use serde::Serialize;

pub use copies::{Capacity, NodeCapacity};
pub use objects::InvalidObject;
pub use reasons::Cause;
pub use sweep::Sweep;

use crate::explain::Explanation;
use crate::gates::Gates;
use crate::held::Held;
use crate::in_use::identity;
use crate::plan::Classes;
use crate::programs::Programs;
use crate::query::{Limits, ResolvedQuery, Response, allocation_of};
use crate::request::claim_name;
use crate::slices::SliceIndex;
use objects::{Item, decode, decode_named};

/// The objects of a cluster. Safe for threads.
#[derive(Debug, Default)]
pub struct Cluster {
    state: Mutex<Arc<State>>,
    programs: Programs,
    gates: Gates,
    shared: Mutex<SharedValues>,
}

/// Attributes and capacities that devices have in common.
#[derive(Debug, Default)]
struct SharedValues {
    attributes: Shared<DeviceAttribute>,
    capacity: Shared<DeviceCapacity>,
}

#[derive(Debug, Clone, Default)]
struct State {
    slices: SliceIndex,
    classes: BTreeMap<String, Arc<DeviceClass>>,
    nodes: BTreeMap<String, Arc<Node>>,
    held: Held,
    slices_decoded: u64,
}

/// The numbers of objects, and of the work so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub slices: usize,
    pub classes: usize,
    pub nodes: usize,
    pub held: usize,
    pub slices_decoded: u64,
    pub expressions_compiled: u64,
    pub selectors_evaluated: u64,
}

/// The options of a query.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    pub limits: Limits,
    /// Computes the result as if no claim was held.
    pub ignore_held: bool,
}

impl Cluster {
    /// A cluster whose kube-scheduler has these gates on, and this minor version.
    pub fn with_gates(gates: Gates) -> Self {
        Self {
            gates,
            ..Self::default()
        }
    }

    /// Adds slices, or replaces those with the same names. `json` is an object, an array, or a list of the API.
    ///
    /// # Errors
    ///
    /// An object is invalid, or with `new` a name is not new. Nothing changes.
    pub fn update_slices(&self, json: &[u8], new: bool) -> Result<(), InvalidObject> {
        let mut slices = decode_named::<ResourceSlice>(json)?;
        for slice in &mut slices {
            keep_name(&mut slice.metadata);
        }
        self.share_values(&mut slices);
        let mut state = self.lock();
        if new {
            let mut names = BTreeSet::new();
            for slice in &slices {
                let name = slice.metadata.name.as_str();
                if state.slices.contains(name) || !names.insert(name) {
                    return Err(InvalidObject::duplicate("ResourceSlice", name));
                }
            }
        }
        let state = Arc::make_mut(&mut state);
        state.slices_decoded += slices.len() as u64;
        for slice in slices {
            state.slices.put(slice.into());
        }
        Ok(())
    }

    /// Removes a slice. Returns whether there was one.
    pub fn delete_slice(&self, name: &str) -> bool {
        Arc::make_mut(&mut self.lock()).slices.delete(name)
    }

    /// Adds classes, or replaces those with the same names.
    ///
    /// # Errors
    ///
    /// An object is invalid. Nothing changes.
    pub fn update_classes(&self, json: &[u8]) -> Result<(), InvalidObject> {
        let classes = decode_named::<DeviceClass>(json)?;
        let mut state = self.lock();
        let state = Arc::make_mut(&mut state);
        for mut class in classes {
            keep_name(&mut class.metadata);
            let name = class.metadata.name.clone();
            state.classes.insert(name, Arc::new(class));
        }
        Ok(())
    }

    /// Removes a class. Returns whether there was one.
    pub fn delete_class(&self, name: &str) -> bool {
        let mut state = self.lock();
        Arc::make_mut(&mut state).classes.remove(name).is_some()
    }

    /// Adds nodes, or replaces those with the same names. Once there is a Node object, only these nodes exist.
    ///
    /// # Errors
    ///
    /// An object is invalid. Nothing changes.
    pub fn update_nodes(&self, json: &[u8]) -> Result<(), InvalidObject> {
        let nodes = decode_named::<Node>(json)?;
        let mut state = self.lock();
        let state = Arc::make_mut(&mut state);
        for mut node in nodes {
            let labels = std::mem::take(&mut node.metadata.labels);
            keep_name(&mut node.metadata);
            node.metadata.labels = labels;
            let name = node.metadata.name.clone();
            state.nodes.insert(name, Arc::new(node));
        }
        Ok(())
    }

    /// Removes a node. Returns whether there was one.
    pub fn delete_node(&self, name: &str) -> bool {
        let mut state = self.lock();
        Arc::make_mut(&mut state).nodes.remove(name).is_some()
    }

    /// Records the devices of allocated claims as in use. A claim that is held already gets its new allocation.
    /// With `skip_pending`, claims without an allocation are ignored.
    ///
    /// # Errors
    ///
    /// A claim is invalid, has no allocation, or has neither uid nor name. Nothing changes.
    pub fn hold(&self, json: &[u8], skip_pending: bool) -> Result<(), InvalidObject> {
        let mut claims = decode::<ResourceClaim>(json)?;
        claims.retain(|claim| !skip_pending || allocation_of(claim).is_some());
        for (index, claim) in claims.iter().enumerate() {
            let missing = if identity(claim).is_none() {
                ("metadata.uid", "must be set, or metadata.name")
            } else if allocation_of(claim).is_none() {
                (
                    "status.allocation",
                    "must be set: only an allocated claim holds devices",
                )
            } else {
                continue;
            };
            return Err(InvalidObject::of(claim, index, missing.0, missing.1));
        }
        let mut state = self.lock();
        let held = &mut Arc::make_mut(&mut state).held;
        for claim in &claims {
            if let Some(allocation) = allocation_of(claim) {
                held.add(claim, allocation);
            }
        }
        Ok(())
    }

    /// Releases the devices of claims, by uid, or by name where they have no uid. Returns the number of claims that were
    /// held.
    ///
    /// # Errors
    ///
    /// A claim is invalid, or has neither uid nor name. Nothing changes.
    pub fn release(&self, json: &[u8]) -> Result<usize, InvalidObject> {
        let claims = decode::<ResourceClaim>(json)?;
        let mut identities = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            let known = identity(claim).ok_or_else(|| {
                InvalidObject::of(
                    claim,
                    index,
                    "metadata.uid",
                    "must be set, or metadata.name",
                )
            })?;
            identities.push(known);
        }
        let mut state = self.lock();
        let held = &mut Arc::make_mut(&mut state).held;
        let released = identities.into_iter().filter(|id| held.remove(*id));
        Ok(released.count())
    }

    /// Allocates devices of a node to claims, all or none, as kube-scheduler does. Errors of the allocation are in
    /// [`Response::error`].
    ///
    /// # Errors
    ///
    /// A claim is invalid, or the node is unknown.
    pub fn allocate(
        &self,
        node: &str,
        claims: &[u8],
        options: Options,
    ) -> Result<Response, InvalidObject> {
        self.with_query(node, claims, options, |query| {
            Response::new(query.allocate(), query.gates.minor)
        })
    }

    /// Explains the result of [`Cluster::allocate`]. Errors of the allocation are in [`Explanation::error`].
    ///
    /// # Errors
    ///
    /// As for [`Cluster::allocate`].
    pub fn explain(
        &self,
        node: &str,
        claims: &[u8],
        options: Options,
    ) -> Result<Explanation, InvalidObject> {
        self.with_query(node, claims, options, |query| query.explain())
    }

    /// Computes on which nodes the claims fit, all together, and why not on others.
    ///
    /// # Errors
    ///
    /// A claim is invalid, or a node is unknown.
    pub fn fits(
        &self,
        nodes: Option<&[String]>,
        claims: &[u8],
        options: Options,
    ) -> Result<Sweep, InvalidObject> {
        let claims = decode::<ResourceClaim>(claims)?;
        let state = self.snapshot();
        let nodes = state.selected(nodes)?;
        let classes = state.classes();
        let query = |node| self.resolve(&state, &classes, node, &claims, options);
        Ok(sweep::run(&nodes, options.limits, query))
    }

    /// Computes how many copies of the claims fit, one after another: on each node alone, and in total. `shared` has the
    /// claims that all copies use together.
    ///
    /// # Errors
    ///
    /// A claim is invalid, or a node is unknown.
    pub fn capacity(
        &self,
        nodes: Option<&[String]>,
        claims: &[u8],
        shared: &[u8],
        limit: u64,
        options: Options,
    ) -> Result<Capacity, InvalidObject> {
        let claims = decode::<ResourceClaim>(claims)?;
        let shared = decode::<ResourceClaim>(shared)?;
        let allocated = claims
            .iter()
            .position(|claim| allocation_of(claim).is_some());
        if let Some(index) = allocated {
            let message = "must not be set: a copy needs its own devices";
            let claim = &claims[index];
            return Err(InvalidObject::of(
                claim,
                index,
                "status.allocation",
                message,
            ));
        }
        let state = self.snapshot();
        let nodes = state.selected(nodes)?;
        let classes = state.classes();
        let capacity_query = copies::CapacityQuery {
            nodes: &nodes,
            slices: &state.slices,
            held: (!options.ignore_held).then_some(&state.held),
            copy: &claims,
            shared: &shared,
            limit,
            limits: options.limits,
            query: |node| self.resolve(&state, &classes, node, &[], options),
        };
        Ok(capacity_query.run())
    }

    /// The numbers of objects, and of the work so far.
    pub fn counts(&self) -> Counts {
        let state = self.snapshot();
        Counts {
            slices: state.slices.len(),
            classes: state.classes.len(),
            nodes: state.nodes.len(),
            held: state.held.len(),
            slices_decoded: state.slices_decoded,
            expressions_compiled: self.programs.compilations(),
            selectors_evaluated: self.programs.evaluations(),
        }
    }

    fn with_query<A>(
        &self,
        node: &str,
        claims: &[u8],
        options: Options,
        compute: impl FnOnce(ResolvedQuery<'_>) -> A,
    ) -> Result<A, InvalidObject> {
        let claims = decode::<ResourceClaim>(claims)?;
        let state = self.snapshot();
        let node = state.node(node)?;
        let classes = state.classes();
        Ok(compute(
            self.resolve(&state, &classes, &node, &claims, options),
        ))
    }

    fn resolve<'a>(
        &'a self,
        state: &'a State,
        classes: &'a Classes<'a>,
        node: &'a Node,
        claims: &'a [ResourceClaim],
        options: Options,
    ) -> ResolvedQuery<'a> {
        ResolvedQuery {
            node,
            classes,
            slices: &state.slices,
            claims,
            held: (!options.ignore_held).then_some(&state.held),
            placed: None,
            programs: &self.programs,
            gates: self.gates,
            limits: options.limits,
            deadline: options.limits.deadline(Instant::now()),
        }
    }

    fn share_values(&self, slices: &mut [ResourceSlice]) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for device in slices.iter_mut().flat_map(|slice| &mut slice.spec.devices) {
            device.attributes.share(&mut shared.attributes);
            device.capacity.share(&mut shared.capacity);
        }
    }

    fn snapshot(&self) -> Arc<State> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The Node object, or a node without labels if there are no Node objects at all.
    fn node(&self, name: &str) -> Result<Arc<Node>, InvalidObject> {
        if let Some(node) = self.nodes.get(name) {
            return Ok(Arc::clone(node));
        }
        if !self.nodes.is_empty() {
            return Err(InvalidObject::unknown_node(name, self.nodes.len()));
        }
        let mut node = Node::default();
        name.clone_into(&mut node.metadata.name);
        Ok(Arc::new(node))
    }

    /// The nodes with these names; all if there are no names. They are ordered by name.
    fn selected(&self, names: Option<&[String]>) -> Result<Vec<Arc<Node>>, InvalidObject> {
        let names: BTreeSet<&str> = match names {
            Some(names) => names.iter().map(String::as_str).collect(),
            None if self.nodes.is_empty() => self.slices.node_names().collect(),
            None => self.nodes.keys().map(String::as_str).collect(),
        };
        names.into_iter().map(|name| self.node(name)).collect()
    }

    fn classes(&self) -> Classes<'_> {
        self.classes
            .iter()
            .map(|(name, class)| (name.as_str(), &**class))
            .collect()
    }
}

/// Drops metadata that no query reads.
fn keep_name(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        name: std::mem::take(&mut metadata.name),
        ..ObjectMeta::default()
    };
}

impl Item for ResourceClaim {
    const KIND: &'static str = "ResourceClaim";

    fn label(&self) -> String {
        claim_name(self)
    }
}
