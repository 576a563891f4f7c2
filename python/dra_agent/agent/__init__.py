"""The life of the agent: configuration, start, stop, logs, metrics, health endpoints."""
