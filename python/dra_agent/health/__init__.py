"""Device health: from observations of back ends to issues with a severity, to taints and published health.

It decides how long an issue is active, and never reads hardware.
"""

from __future__ import annotations

from dra_agent.health.hysteresis import ActiveIssue
from dra_agent.health.issues import HealthIssue, HealthSettings, Severity
from dra_agent.health.monitor import Monitor, Summary
from dra_agent.health.published_health import DeviceHealth, DeviceHealthStore
from dra_agent.health.state_file import HealthStateFile
from dra_agent.health.taints import apply_health, apply_recorded

__all__ = [
    "HealthIssue",
    "DeviceHealthStore",
    "HealthSettings",
    "Monitor",
    "HealthStateFile",
    "DeviceHealth",
    "Severity",
    "ActiveIssue",
    "Summary",
    "apply_health",
    "apply_recorded",
]
