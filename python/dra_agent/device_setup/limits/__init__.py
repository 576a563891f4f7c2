"""Memory limits by cgroup: the driver's or the kernel's, applied when a container starts."""
