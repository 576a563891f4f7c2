//! Taints and tolerations of devices.

use dra_api::{Device, DeviceTaint, DeviceToleration};

/// The first taint that is not tolerated. The effect `None` and unknown effects do not prevent allocation.
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
    let matches = |expected: &str, value: &str| expected.is_empty() || expected == value;
    matches(&toleration.effect, &taint.effect)
        && matches(&toleration.key, &taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(taints: &[(&str, &str)]) -> Device {
        let taint = |(key, effect): &(&str, &str)| DeviceTaint {
            key: (*key).to_owned(),
            effect: (*effect).to_owned(),
            ..DeviceTaint::default()
        };
        Device {
            taints: taints.iter().map(taint).collect(),
            ..Device::default()
        }
    }

    #[test]
    fn a_taint_of_effect_none_prevents_nothing_and_hides_no_other() {
        let unmonitored = device(&[("d/unmonitored", "None")]);
        assert_eq!(not_tolerated(&unmonitored, &[]), None);
        for effect in ["NoSchedule", "NoExecute"] {
            let both = device(&[("d/unmonitored", "None"), ("d/xid-95", effect)]);
            let key = not_tolerated(&both, &[]).map(|taint| taint.key.as_str());
            assert_eq!(key, Some("d/xid-95"));
        }
    }

    #[test]
    fn a_toleration_of_effect_none_tolerates_no_other_effect() {
        let toleration = DeviceToleration {
            key: "d/unmonitored".to_owned(),
            operator: "Exists".to_owned(),
            ..DeviceToleration::default()
        };
        let both = device(&[("d/unmonitored", "None"), ("d/gpu-lost", "NoExecute")]);
        assert!(not_tolerated(&both, std::slice::from_ref(&toleration)).is_some());
        let strict = device(&[("d/unmonitored", "NoSchedule")]);
        assert!(not_tolerated(&strict, &[]).is_some());
        assert_eq!(not_tolerated(&strict, &[toleration]), None);
    }
}
