//! A common form of exact requests and alternatives of `firstAvailable`.

use dra_api::{
    CapacityRequirements, DeviceRequest, DeviceSelector, DeviceSubRequest, DeviceToleration,
    ExactDeviceRequest, ResourceClaim,
};

/// A request or a subrequest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The request in the claim: `main` of `main/sub`.
    pub(crate) main: &'a str,
    /// The alternative: `sub` of `main/sub`.
    pub(crate) sub: Option<&'a str>,
    pub(crate) class: &'a str,
    pub(crate) selectors: &'a [DeviceSelector],
    pub(crate) mode: &'a str,
    pub(crate) count: i64,
    /// Not available for subrequests.
    pub(crate) admin_access: bool,
    pub(crate) tolerations: &'a [DeviceToleration],
    pub(crate) capacity: Option<&'a CapacityRequirements>,
    pub(crate) derived_attributes: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn exact(request: &'a DeviceRequest, exactly: &'a ExactDeviceRequest) -> Self {
        Self {
            main: &request.name,
            sub: None,
            class: &exactly.device_class_name,
            selectors: &exactly.selectors,
            mode: &exactly.allocation_mode,
            count: exactly.count,
            admin_access: exactly.admin_access.unwrap_or(false),
            tolerations: &exactly.tolerations,
            capacity: exactly.capacity.as_ref(),
            derived_attributes: !exactly.derived_attributes.is_empty(),
        }
    }

    pub(crate) fn alternative(request: &'a DeviceRequest, sub: &'a DeviceSubRequest) -> Self {
        Self {
            main: &request.name,
            sub: Some(&sub.name),
            class: &sub.device_class_name,
            selectors: &sub.selectors,
            mode: &sub.allocation_mode,
            count: sub.count,
            admin_access: false,
            tolerations: &sub.tolerations,
            capacity: sub.capacity.as_ref(),
            derived_attributes: !sub.derived_attributes.is_empty(),
        }
    }

    /// `main`, or `main/sub`: the name in results, constraints and configuration.
    pub(crate) fn name(&self) -> String {
        match self.sub {
            Some(sub) => format!("{}/{sub}", self.main),
            None => self.main.to_owned(),
        }
    }

    /// Whether a list of request names includes this one. The name of a request includes its alternatives.
    pub(crate) fn is_named_in(&self, names: &[String]) -> bool {
        names.iter().any(|name| {
            name == self.main
                || self.sub.is_some_and(|sub| {
                    name.strip_prefix(self.main)
                        .and_then(|rest| rest.strip_prefix('/'))
                        == Some(sub)
                })
        })
    }
}

/// `namespace/name`, as messages name a claim.
pub(crate) fn claim_name(claim: &ResourceClaim) -> String {
    let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
    match (namespace.is_empty(), name.is_empty()) {
        (_, true) => "(without a name)".to_owned(),
        (true, false) => name.clone(),
        (false, false) => format!("{namespace}/{name}"),
    }
}
