"""Time slices of shared NVIDIA GPUs: how long a program runs before the next one, while claims configure it.

Time slices only schedule programs: they isolate neither memory nor faults.
"""

from __future__ import annotations

from dra_agent.device_setup.timeslice.setup import GpuConfig, TimeSliceSetup

__all__ = ["GpuConfig", "TimeSliceSetup"]
