"""Others on the node who give out the same devices: device plugins and other DRA drivers, and what follows for our own.

Two managers of one device give it to two pods. This part finds out and decides; the publisher publishes less.
"""

from __future__ import annotations

from dra_agent.neighbours.capacity import Plugin, plugins_of
from dra_agent.neighbours.foreign import ForeignDevice, foreign_devices
from dra_agent.neighbours.remembered import Remembered, forget, recall, remember
from dra_agent.neighbours.verdict import Seen, Verdict, decide, observe, without

__all__ = [
    "ForeignDevice",
    "Plugin",
    "Remembered",
    "Seen",
    "Verdict",
    "decide",
    "foreign_devices",
    "forget",
    "observe",
    "plugins_of",
    "recall",
    "remember",
    "without",
]
