"""What is wrong with devices: from what back ends see and hear to causes with a severity, to taints and a board.

It decides how long something counts, and never looks at hardware itself.
"""

from __future__ import annotations

from dra_agent.health.board import HealthBoard, Row
from dra_agent.health.causes import Cause, Severity
from dra_agent.health.monitor import Monitor, Summary
from dra_agent.health.record import Record
from dra_agent.health.settings import HealthSettings
from dra_agent.health.spells import Spell
from dra_agent.health.verdict import judged, recalled

__all__ = [
    "Cause",
    "HealthBoard",
    "HealthSettings",
    "Monitor",
    "Record",
    "Row",
    "Severity",
    "Spell",
    "Summary",
    "judged",
    "recalled",
]
