//! The CEL environment of Kubernetes DRA.
