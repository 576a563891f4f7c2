"""One sample of a device: optional values with units in their names; None is unknown, never 0."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dra_agent.inventory.model import Device


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Values of one device at one moment."""

    gpu_utilization_ratio: float | None = None
    """Part of the driver's last sampling period in which the GPU computed: 0 to 1."""
    memory_utilization_ratio: float | None = None
    """Part of that period in which device memory was read or written: 0 to 1."""
    sm_activity_ratio: float | None = None
    """Part of the multiprocessors that worked, like the next two an average since the reading before: 0 to 1."""
    tensor_activity_ratio: float | None = None
    """Part of the time in which multiprocessors did tensor operations: 0 to 1."""
    memory_bandwidth_ratio: float | None = None
    """Part of the bandwidth of device memory that was used: 0 to 1."""
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    power_watts: float | None = None
    average_power_watts: float | None = None
    """Of drivers that only count energy: an average since the reading before."""
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons that lower the clocks now, or of some drivers, that did since the reading before."""

    energy_joules: float | None = None
    """A counter, like those below: since the driver was loaded, or since any other event that the driver chose."""
    ecc_corrected_errors: float | None = None
    ecc_uncorrected_errors: float | None = None
    network_receive_bytes: float | None = None
    network_transmit_bytes: float | None = None
    network_receive_errors: float | None = None
    network_transmit_errors: float | None = None
    network_receive_drops: float | None = None
    network_transmit_drops: float | None = None
    rdma_receive_bytes: float | None = None
    rdma_transmit_bytes: float | None = None
    rdma_receive_errors: float | None = None
    """Packets with an error; this one and the next two may stay at the highest value of the port's counter."""
    rdma_transmit_discards: float | None = None
    rdma_link_downed: float | None = None
    """How often a link failed."""
    nvlink_receive_bytes: float | None = None
    nvlink_transmit_bytes: float | None = None
    xgmi_read_bytes: float | None = None
    """Of all links of XGMI, AMD's links between GPUs."""
    xgmi_write_bytes: float | None = None
    pcie_receive_bytes: float | None = None
    pcie_transmit_bytes: float | None = None
    pcie_replays: float | None = None
    """How often a packet was sent again on the PCIe link."""
    xid_errors: float | None = None
    """XIDs of NVIDIA's driver that concern this device alone."""


COUNTERS = (
    "energy_joules",
    "ecc_corrected_errors",
    "ecc_uncorrected_errors",
    "network_receive_bytes",
    "network_transmit_bytes",
    "network_receive_errors",
    "network_transmit_errors",
    "network_receive_drops",
    "network_transmit_drops",
    "rdma_receive_bytes",
    "rdma_transmit_bytes",
    "rdma_receive_errors",
    "rdma_transmit_discards",
    "rdma_link_downed",
    "nvlink_receive_bytes",
    "nvlink_transmit_bytes",
    "xgmi_read_bytes",
    "xgmi_write_bytes",
    "pcie_receive_bytes",
    "pcie_transmit_bytes",
    "pcie_replays",
    "xid_errors",
)
"""Fields that only grow while the driver stays loaded."""
GAUGES = tuple(name for name in DeviceSample.__struct_fields__ if name not in COUNTERS and name != "throttle_reasons")
AVERAGES = ("sm_activity_ratio", "tensor_activity_ratio", "memory_bandwidth_ratio", "average_power_watts")
"""Gauges of the time since the reading before; others are of now, or of a short period that the driver chose."""
PARTITION_AVERAGES = ("gpu_utilization_ratio", *AVERAGES)
"""The same of a partition of a GPU."""
UTILIZATION = ("gpu_utilization_ratio", "memory_utilization_ratio")
"""Gauges of the driver's last sampling period, where they are not averages."""
THROTTLE_REASONS = ("power_cap", "thermal", "power_brake", "hardware_slowdown", "sync_boost")


class IncompleteError(Exception):
    """A part of the values cannot be read; the text has the reason."""

    def __init__(self, sample: DeviceSample, reason: str) -> None:
        super().__init__(reason)
        self.sample = sample
        """The other values."""


class TelemetrySource(Protocol):
    """Reads the devices of one vendor or family; one call per device at a time, from any thread.

    One implementation per vendor, and one for networks.
    """

    name: str

    def can_read(self, device: Device) -> bool:
        """Return whether the source has values of this device now, by its description alone."""
        ...

    def read(self, device: Device) -> DeviceSample | None:
        """Read one device; None: it cannot be read now, as expected (its library is closed).

        Raises:
            AgentError, OSError: The values cannot be read.
            IncompleteError: Only some can be read.
        """
        ...

    def close(self) -> None:
        """Close libraries."""
        ...
