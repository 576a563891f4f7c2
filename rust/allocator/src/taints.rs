//! Which taint keeps a device from being allocated to a request.

use dra_api::{Device, DeviceTaint, DeviceToleration};

/// The first taint that the tolerations do not cover. `None` and unknown effects keep nobody away.
pub(crate) fn not_tolerated<'a>(
    device: &'a Device,
    tolerations: &[DeviceToleration],
) -> Option<&'a DeviceTaint> {
    device.taints.iter().find(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
    })
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let matches = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    matches(&toleration.effect, &taint.effect)
        && matches(&toleration.key, &taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}
