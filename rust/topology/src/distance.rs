//! How far apart two functions are, in the levels that operators know from `nvidia-smi topo -m`.

use serde::Serialize;

use crate::function::Function;
use crate::path::Hop;

/// From nearest to farthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Distance {
    /// One switch (or a bridge, or two functions of one card) lies between them.
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
    /// As operators and the JSON write it.
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
            // Sharing only a host bridge, be it the outer one or the one inside a VMD.
            None | Some(Hop::Bus(_)) => Self::Phb,
            Some(Hop::Device(_)) => match (&one[shared..], &other[shared..]) {
                // At most the downstream port on each side.
                ([] | [Hop::Device(_)], [] | [Hop::Device(_)]) => Self::Pix,
                // Two root buses inside one VMD.
                (a, b) if a.iter().chain(b).any(|hop| matches!(hop, Hop::Bus(_))) => Self::Phb,
                _ => Self::Pxb,
            },
        }
    }
}
