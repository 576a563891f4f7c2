"""Prometheus metrics: the registry, the collectors of the agent's parts, and the HTTP server."""
