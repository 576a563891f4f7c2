//! Compatibility groups: which devices may consume counters of one set at the same time (DRADeviceCompatibilityGroups).
//!
//! All devices of a counter set must have a group in common. A device without groups is compatible with devices without
//! groups only. The rules are those of k8s.io/dynamic-resource-allocation v0.37.1,
//! structured/internal/experimental/compatibility_groups.go (compatibilityGroupIntersection).

use std::collections::BTreeSet;

/// The groups of the devices that consume counters of one set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Members<'a> {
    #[default]
    None,
    WithoutGroups,
    /// The groups that all members have.
    Common(BTreeSet<&'a str>),
}

impl<'a> Members<'a> {
    /// Whether a device with these groups is compatible with all members.
    pub(crate) fn admits(&self, groups: &[String]) -> bool {
        match self {
            Self::None => true,
            Self::WithoutGroups => groups.is_empty(),
            Self::Common(common) => groups.iter().any(|group| common.contains(group.as_str())),
        }
    }

    /// The members with one more device. Slices can change after an allocation, so allocated devices can be incompatible:
    /// as in Kubernetes, one without groups then changes nothing, and the order of the devices matters.
    pub(crate) fn with(&self, groups: &'a [String]) -> Self {
        let names = || groups.iter().map(String::as_str);
        match self {
            Self::None if groups.is_empty() => Self::WithoutGroups,
            Self::None => Self::Common(names().collect()),
            Self::Common(common) if !groups.is_empty() => {
                Self::Common(names().filter(|group| common.contains(group)).collect())
            }
            Self::WithoutGroups | Self::Common(_) => self.clone(),
        }
    }

    /// What the members have in common, for messages.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::None => "no devices".to_owned(),
            Self::WithoutGroups => "devices without groups".to_owned(),
            Self::Common(common) if common.is_empty() => {
                "devices without a common group".to_owned()
            }
            Self::Common(common) => format!("devices with {}", label(common.iter().copied())),
        }
    }
}

/// `group a`, or `groups a, b`.
pub(crate) fn label<'g>(names: impl Iterator<Item = &'g str>) -> String {
    let names: Vec<&str> = names.collect();
    let noun = if names.len() == 1 { "group" } else { "groups" };
    format!("{noun} {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::Members;

    fn devices(groups: &[&[&str]]) -> Vec<Vec<String>> {
        groups
            .iter()
            .map(|names| names.iter().map(|name| (*name).to_owned()).collect())
            .collect()
    }

    fn members(devices: &[Vec<String>]) -> Members<'_> {
        devices
            .iter()
            .fold(Members::None, |members, groups| members.with(groups))
    }

    fn admitted(members: &Members<'_>, others: &[&[&str]]) -> Vec<bool> {
        let others = devices(others);
        others.iter().map(|groups| members.admits(groups)).collect()
    }

    #[test]
    fn the_first_device_is_compatible() {
        assert_eq!(admitted(&Members::None, &[&[], &["a"]]), [true, true]);
    }

    #[test]
    fn all_devices_have_a_group_in_common() {
        let placed = devices(&[&["a", "b"], &["b", "c"]]);
        let after = members(&placed);
        let others: [&[&str]; 4] = [&["b"], &["a"], &["c", "a"], &[]];
        assert_eq!(admitted(&after, &others), [true, false, false, false]);
        assert_eq!(after.text(), "devices with group b");
    }

    #[test]
    fn devices_without_groups_are_compatible_with_each_other_only() {
        let placed = devices(&[&[], &[]]);
        let after = members(&placed);
        assert_eq!(admitted(&after, &[&[], &["a"]]), [true, false]);
        assert_eq!(after.text(), "devices without groups");
    }

    #[test]
    fn incompatible_devices_that_are_allocated_count_in_their_order() {
        let apart = devices(&[&["a"], &["b"]]);
        let after = members(&apart);
        assert_eq!(admitted(&after, &[&["a"], &[]]), [false, false]);
        assert_eq!(after.text(), "devices without a common group");
        let grouped_first = devices(&[&["a"], &[]]);
        let after = members(&grouped_first);
        assert_eq!(admitted(&after, &[&["a"], &[]]), [true, false]);
        let grouped_last = devices(&[&[], &["a"]]);
        let after = members(&grouped_last);
        assert_eq!(admitted(&after, &[&["a"], &[]]), [false, true]);
    }
}
