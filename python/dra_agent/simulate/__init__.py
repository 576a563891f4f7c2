"""Simulated hosts: a machine description becomes sysfs, dev and proc trees and a library that implements NVML."""

from __future__ import annotations

from dra_agent.simulate.builder import build, build_machine
from dra_agent.simulate.profiles import profiles
from dra_agent.simulate.recording import folder_name

__all__ = ["build", "build_machine", "folder_name", "profiles"]
