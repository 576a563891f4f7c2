"""How long programs that share an NVIDIA GPU run before the next one has its turn: for the time that claims ask for it.

It orders turns and nothing else: neither memory nor faults of one program are kept from another.
"""

from __future__ import annotations

from dra_agent.device_setup.timeslice.setup import GpuConfig, TimeSliceSetup

__all__ = ["GpuConfig", "TimeSliceSetup"]
