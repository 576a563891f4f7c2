"""What is wrong with devices: from what back ends see and hear to causes with a severity, to taints and a board.

It decides how long something counts, and never looks at hardware itself.
"""

from __future__ import annotations

from dra_agent.health.hysteresis import ActiveIssue
from dra_agent.health.issues import HealthIssue, Severity
from dra_agent.health.monitor import Monitor, Summary
from dra_agent.health.published_health import DeviceHealth, DeviceHealthStore
from dra_agent.health.settings import HealthSettings
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
