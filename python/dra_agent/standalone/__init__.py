"""Claims without Kubernetes: the store, the queue, and the socket that the command line speaks to."""
