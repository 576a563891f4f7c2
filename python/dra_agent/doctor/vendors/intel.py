"""Intel's drivers, which are part of the kernel."""

from __future__ import annotations

from dra_agent.doctor.vendor_driver import VendorDriver

DRIVER = VendorDriver(name="the i915 or xe driver")
