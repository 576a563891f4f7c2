//! Allocates ResourceClaims with the semantics of kube-scheduler.
