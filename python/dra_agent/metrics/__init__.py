"""Prometheus metrics: the registry, what each part of the agent contributes, and the HTTP server that serves them."""
