//! Hints for selectors that fail on a device.

use dra_api::Device;

/// The hint for a missing key: the domain with a key of that name, or how to guard the expression.
pub(super) fn for_failure(message: &str, driver: &str, device: &Device) -> Option<String> {
    let (_, rest) = message.split_once("no such key \"")?;
    let (key, _) = rest.split_once('"')?;
    let published = device
        .attributes
        .keys()
        .chain(device.capacity.keys())
        .find_map(|name| match name.split_once('/') {
            Some((domain, id)) if id == key => Some(domain),
            None if name == key => Some(driver),
            _ => None,
        });
    Some(match published {
        Some(domain) => format!("the device has {key} in domain {domain:?}"),
        None => format!("write .?{key}.orValue(...) or has(...) for optional attributes"),
    })
}

#[cfg(test)]
mod tests {
    use dra_api::DeviceAttribute;

    use super::*;

    #[test]
    fn a_key_of_another_domain_is_pointed_out_and_a_missing_one_guarded() {
        let mut device = Device::default();
        device.attributes.insert(
            "resource.kubernetes.io/numaNode".to_owned(),
            DeviceAttribute::default(),
        );
        let hint = |key: &str| {
            for_failure(
                &format!("1:40: no such key \"{key}\""),
                "a.example.com",
                &device,
            )
        };
        assert_eq!(
            hint("numaNode").as_deref(),
            Some("the device has numaNode in domain \"resource.kubernetes.io\"")
        );
        assert_eq!(
            hint("model").as_deref(),
            Some("write .?model.orValue(...) or has(...) for optional attributes")
        );
        assert_eq!(
            for_failure("no such overload", "a.example.com", &device),
            None
        );
    }
}
