"""Simulated hosts: a description of a machine becomes sysfs, dev and proc trees and a library that answers as NVML.

Nothing else in the agent knows that a host is simulated. `machine` and `tree` serve tests that describe their own.
"""

from __future__ import annotations

from dra_agent.simulate.builder import build, build_machine
from dra_agent.simulate.profiles import profiles

__all__ = ["build", "build_machine", "profiles"]
