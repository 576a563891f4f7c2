//! Constraints of a claim: the same attribute value on all of its devices, or a different one on each.

use dra_api::{Device, DeviceAttribute, DeviceConstraint, ResourceClaim};

use crate::gates::Gates;
use crate::in_use::DeviceId;
use crate::pools::Candidate;
use crate::request::Request;
use crate::value_set::ValueSet;

/// A constraint, and the devices accepted so far.
#[derive(Debug)]
pub(crate) struct Constraint<'a> {
    pub(crate) spec: &'a DeviceConstraint,
    pub(crate) attribute: &'a str,
    pub(crate) distinct: bool,
    accepted: Accepted<'a>,
}

/// The values of the accepted devices, in their order.
#[derive(Debug)]
enum Accepted<'a> {
    Values(Vec<&'a DeviceAttribute>),
    /// Values are compared as sets. Of a constraint with equal values: what the devices up to each one have in common.
    Sets(Vec<ValueSet<'a>>),
}

impl<'a> Constraint<'a> {
    /// `None` for an unknown kind of constraint.
    pub(crate) fn new(spec: &'a DeviceConstraint, gates: Gates) -> Option<Self> {
        let (attribute, distinct) = match (&spec.match_attribute, &spec.distinct_attribute) {
            (Some(attribute), _) => (attribute, false),
            (None, Some(attribute)) => (attribute, true),
            (None, None) => return None,
        };
        Some(Self {
            spec,
            attribute,
            distinct,
            accepted: if gates.list_attributes {
                Accepted::Sets(Vec::new())
            } else {
                Accepted::Values(Vec::new())
            },
        })
    }

    /// The constraints of a claim, without unknown kinds.
    pub(crate) fn of_claim(claim: &'a ResourceClaim, gates: Gates) -> Vec<Self> {
        let specs = &claim.spec.devices.constraints;
        specs
            .iter()
            .filter_map(|spec| Self::new(spec, gates))
            .collect()
    }

    /// The constraints of a claim that apply to one of its requests.
    pub(crate) fn of_request(
        claim: &'a ResourceClaim,
        request: &Request<'_>,
        gates: Gates,
    ) -> Vec<Self> {
        let mut constraints = Self::of_claim(claim, gates);
        constraints.retain(|constraint| constraint.applies_to(request));
        constraints
    }

    /// Whether the constraint applies to the request. Without names it applies to all requests.
    pub(crate) fn applies_to(&self, request: &Request<'_>) -> bool {
        self.spec.requests.is_empty() || request.is_named_in(&self.spec.requests)
    }

    /// Accepts the device if it is compatible with the accepted devices.
    pub(crate) fn add(
        &mut self,
        request: &Request<'_>,
        device: &'a Device,
        id: DeviceId<'_>,
    ) -> bool {
        if !self.applies_to(request) {
            return true;
        }
        let Some(value) = look_up(device, id, self.attribute) else {
            return false;
        };
        match &mut self.accepted {
            Accepted::Values(values) => {
                let fits = fits(value, values, self.distinct);
                if fits {
                    values.push(value);
                }
                fits
            }
            Accepted::Sets(sets) => {
                let set = narrowed(value, sets, self.distinct);
                let fits = set.is_some();
                sets.extend(set);
                fits
            }
        }
    }

    /// Whether `add` would accept the device.
    pub(crate) fn would_add(&self, request: &Request<'_>, candidate: Candidate<'a>) -> bool {
        if !self.applies_to(request) {
            return true;
        }
        let value = look_up(candidate.device, candidate.id(), self.attribute);
        value.is_some_and(|value| match &self.accepted {
            Accepted::Values(values) => fits(value, values, self.distinct),
            Accepted::Sets(sets) => narrowed(value, sets, self.distinct).is_some(),
        })
    }

    /// Removes the last accepted device.
    pub(crate) fn remove(&mut self, request: &Request<'_>) {
        if !self.applies_to(request) {
            return;
        }
        match &mut self.accepted {
            Accepted::Values(values) => {
                values.pop();
            }
            Accepted::Sets(sets) => {
                sets.pop();
            }
        }
    }
}

/// Whether the value is compatible with those of the accepted devices.
fn fits(value: &DeviceAttribute, accepted: &[&DeviceAttribute], distinct: bool) -> bool {
    if distinct {
        accepted.iter().all(|other| differ(value, other))
    } else {
        accepted.first().is_none_or(|first| same(value, first))
    }
}

/// The values that the accepted devices have in common with this one; of a constraint with different values, those of
/// this device, if no accepted one has any of them (k8s.io/dynamic-resource-allocation v0.37.1,
/// structured/internal/experimental: matchAttributeConstraint.add, distinctAttributeConstraint.matchesAttribute).
fn narrowed<'a>(
    value: &'a DeviceAttribute,
    accepted: &[ValueSet<'a>],
    distinct: bool,
) -> Option<ValueSet<'a>> {
    let values = ValueSet::of(value)?;
    if distinct {
        let differs = accepted
            .iter()
            .all(|other| values.intersection(other).is_none());
        return differs.then_some(values);
    }
    match accepted.last() {
        Some(common) => common.intersection(&values),
        None => Some(values),
    }
}

/// The attribute by its qualified name, or without the domain if that is the driver's.
pub(crate) fn look_up<'a>(
    device: &'a Device,
    id: DeviceId<'_>,
    name: &str,
) -> Option<&'a DeviceAttribute> {
    device.attributes.get(name).or_else(|| {
        let (domain, short) = name.split_once('/')?;
        if domain == id.driver {
            device.attributes.get(short)
        } else {
            None
        }
    })
}

/// Whether two values are equal. Lists and values of unknown type are never equal, not even to themselves.
pub(crate) fn same(value: &DeviceAttribute, other: &DeviceAttribute) -> bool {
    if value.string.is_some() {
        value.string == other.string
    } else if value.int.is_some() {
        value.int == other.int
    } else if value.bool.is_some() {
        value.bool == other.bool
    } else {
        value.version.is_some() && value.version == other.version
    }
}

/// Whether the value differs from an accepted one. Values of different types differ; a list or a value of unknown type
/// never differs, so it can only be the first one.
fn differ(value: &DeviceAttribute, accepted: &DeviceAttribute) -> bool {
    is_comparable(value) && !same(value, accepted)
}

/// Whether the value is neither a list nor of unknown type.
pub(crate) fn is_comparable(value: &DeviceAttribute) -> bool {
    value.string.is_some() || value.int.is_some() || value.bool.is_some() || value.version.is_some()
}
