//! What decides the rules of a kube-scheduler: its minor version, and its feature gates that are off by default in v1.37
//! and change an allocation.
//!
//! Any of them selects the experimental variant of the Go allocator (k8s.io/dynamic-resource-allocation v0.37.1,
//! structured/allocator.go, NewAllocator). Its rules for devices without these fields are those of the default variant.

const LIST_ATTRIBUTES: &str = "DRAListTypeAttributes";
/// Nodes whose kubelet supports it declare it by the same name.
pub(crate) const OPTIONAL_NODE_OPERATIONS: &str = "DRAOptionalNodeOperations";

/// The minor version of Kubernetes whose rules apply where another one is not named.
const DEFAULT_MINOR: u32 = 37;

/// The gates that are on, of those that are off by default, and the minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    pub(crate) minor: u32,
    pub(crate) list_attributes: bool,
    pub(crate) optional_node_operations: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            minor: DEFAULT_MINOR,
            list_attributes: false,
            optional_node_operations: false,
        }
    }
}

impl Gates {
    /// The gates with these names.
    ///
    /// # Errors
    ///
    /// A name is not one of the supported gates.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut gates = Self::default();
        for name in names {
            match name {
                LIST_ATTRIBUTES => gates.list_attributes = true,
                OPTIONAL_NODE_OPERATIONS => gates.optional_node_operations = true,
                other => {
                    return Err(format!(
                        "feature gate {other:?} is not supported; supported are {LIST_ATTRIBUTES} and {OPTIONAL_NODE_OPERATIONS}"
                    ));
                }
            }
        }
        Ok(gates)
    }

    /// The same gates in another minor version.
    #[must_use]
    pub fn of_minor(self, minor: u32) -> Self {
        Self { minor, ..self }
    }

    /// Whether kube-scheduler uses the experimental variant.
    pub(crate) fn any(self) -> bool {
        self.list_attributes || self.optional_node_operations
    }
}

#[cfg(test)]
mod tests {
    use super::Gates;

    #[test]
    fn gates_are_read_by_name() {
        let none = Gates::named([]);
        assert_eq!(none, Ok(Gates::default()));
        let lists = Gates::named(["DRAListTypeAttributes"]);
        assert!(lists.is_ok_and(|gates| gates.list_attributes && gates.any()));
        let unknown = Gates::named(["DRADerivedAttributes"]);
        assert!(unknown.is_err_and(|message| message.contains("DRADerivedAttributes")));
    }
}
