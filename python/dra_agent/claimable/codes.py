"""Names of the reasons why a device of the host is not published."""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "no-driver",
    "reserved",
    "user-space-driver",
    "unusable-driver",
    "virtualized",
    "management",
    "part-of-device",
    "vfio-noiommu",
    "no-iommu-group",
    "iommu-group",
    "display",
    "console",
    "physical-function",
    "no-node",
    "node-unknown",
    "no-interface",
    "wireless",
    "host-interface",
    "host-address",
    "unsupported-platform",
    "incomplete-nodes",
    "unreadable",
    "partition",
    "passthrough",
    "rule",
    "other-manager",
    "unmatched-manager",
]
"""Stable, for scripts and alerts; docs/reference/exclusion-codes.md has what each means."""
