"""Records a host, so that the agent can be run on it elsewhere: its trees, its NVML calls, and the output of tools."""

from __future__ import annotations

from dra_agent.doctor.record.recorder import record

__all__ = ["record"]
