"""A real Kubernetes cluster on one machine: the control plane, kubelets and containerds as processes."""
