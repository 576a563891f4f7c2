//! Constraints of a claim: the same attribute value on all of its devices, or a different one on each.

use dra_api::{Device, DeviceAttribute, DeviceConstraint, ResourceClaim};

use crate::in_use::DeviceId;
use crate::pools::Candidate;
use crate::request::Request;

/// A constraint, and the devices accepted so far.
#[derive(Debug)]
pub(crate) struct Constraint<'a> {
    pub(crate) spec: &'a DeviceConstraint,
    pub(crate) attribute: &'a str,
    pub(crate) distinct: bool,
    accepted: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    /// `None` for an unknown kind of constraint.
    pub(crate) fn new(spec: &'a DeviceConstraint) -> Option<Self> {
        let (attribute, distinct) = match (&spec.match_attribute, &spec.distinct_attribute) {
            (Some(attribute), _) => (attribute, false),
            (None, Some(attribute)) => (attribute, true),
            (None, None) => return None,
        };
        Some(Self {
            spec,
            attribute,
            distinct,
            accepted: Vec::new(),
        })
    }

    /// The constraints of a claim, without unknown kinds.
    pub(crate) fn of_claim(claim: &'a ResourceClaim) -> Vec<Self> {
        let specs = &claim.spec.devices.constraints;
        specs.iter().filter_map(Self::new).collect()
    }

    /// The constraints of a claim that apply to one of its requests.
    pub(crate) fn of_request(claim: &'a ResourceClaim, request: &Request<'_>) -> Vec<Self> {
        let mut constraints = Self::of_claim(claim);
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
        let Some(value) = self.fitting(device, id) else {
            return false;
        };
        self.accepted.push(value);
        true
    }

    /// Whether `add` would accept the device.
    pub(crate) fn would_add(&self, request: &Request<'_>, candidate: Candidate<'a>) -> bool {
        !self.applies_to(request) || self.fitting(candidate.device, candidate.id()).is_some()
    }

    /// The device's value, if it is compatible with the accepted devices.
    fn fitting(&self, device: &'a Device, id: DeviceId<'_>) -> Option<&'a DeviceAttribute> {
        let value = look_up(device, id, self.attribute)?;
        let fits = if self.distinct {
            self.accepted.iter().all(|other| differ(value, other))
        } else {
            self.accepted.first().is_none_or(|first| same(value, first))
        };
        fits.then_some(value)
    }

    /// Removes the last accepted device.
    pub(crate) fn remove(&mut self, request: &Request<'_>) {
        if self.applies_to(request) {
            self.accepted.pop();
        }
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
