//! The distance of two functions, in the levels of `nvidia-smi topo -m`.

use serde::Serialize;

use crate::function::Function;
use crate::path::PathSegment;

/// The distance of two functions, from nearest to farthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Distance {
    /// The path has one switch (or a bridge, or both are functions of one card).
    #[serde(rename = "PIX")]
    Pix,
    /// Several switches, but no host bridge.
    #[serde(rename = "PXB")]
    Pxb,
    /// A host bridge.
    #[serde(rename = "PHB")]
    Phb,
    /// Different host bridges of one NUMA node.
    #[serde(rename = "NODE")]
    Node,
    /// The link between NUMA nodes, or unknown.
    #[serde(rename = "SYS")]
    Sys,
}

impl Distance {
    /// Returns the name in the JSON output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }

    #[must_use]
    pub fn between(one: &Function, other: &Function) -> Self {
        if one.path.root() != other.path.root() {
            return match (one.numa_node, other.numa_node) {
                (Some(a), Some(b)) if a == b => Self::Node,
                _ => Self::Sys,
            };
        }
        let (one, other) = (one.path.below(), other.path.below());
        let shared = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        match shared.checked_sub(1).map(|last| one[last]) {
            // They share only a host bridge: the outer one or the one inside a VMD.
            None | Some(PathSegment::Bus(_)) => Self::Phb,
            Some(PathSegment::Device(_)) => match (&one[shared..], &other[shared..]) {
                // At most the downstream port on each side.
                ([] | [PathSegment::Device(_)], [] | [PathSegment::Device(_)]) => Self::Pix,
                // Two root buses inside one VMD.
                (a, b)
                    if a.iter()
                        .chain(b)
                        .any(|segment| matches!(segment, PathSegment::Bus(_))) =>
                {
                    Self::Phb
                }
                _ => Self::Pxb,
            },
        }
    }
}
