"""Refuses claims and classes with configuration that the agent would refuse later: an admission webhook, optional."""
