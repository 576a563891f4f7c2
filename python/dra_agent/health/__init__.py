"""Device health: from observations of back ends to issues with a severity, to taints and published health.

It decides how long an issue is active, and never reads hardware.
"""
