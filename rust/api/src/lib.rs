//! The `resource.k8s.io/v1` objects, their quantities and their limits.
