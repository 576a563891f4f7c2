"""One AMD GPU as the kernel reports it: its mode, the device nodes of its partitions, and the processes that use it.

Sources: amdgpu_xcp.c and kfd_topology.c of the kernel, and Documentation/gpu/amdgpu/driver-misc.rst.
"""

from __future__ import annotations

import errno
import time

from dra_agent.deadline import Deadline
from dra_agent.device_setup.open_files import DeviceNode, class_node, require_unused
from dra_agent.device_setup.sysfs_writer import TimedWriter
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import COMPUTE_MODE, KfdNode, KfdReader
from dra_agent.inventory.sysfs import SysfsDir

SETTLE_TIMEOUT_S = 20.0
"""Maximum seconds for the driver to create the partitions of a new mode, and for udev to create their device nodes."""
_POLL_INTERVAL_S = 0.05
"""Seconds between two reads of /sys: the kernel reports no end of a mode change."""
_PROCESSES = "class/kfd/kfd/proc"


class Gpu:
    """One GPU by its PCI address; reads the kernel on each call."""

    def __init__(self, host: Host, address: str, writes: TimedWriter, topology: KfdReader) -> None:
        self._host = host
        self._address = address
        self._writes = writes
        self._topology = topology
        self._where = f"GPU {address}"

    @property
    def mode(self) -> str | None:
        """The current mode."""
        return self._files().text(COMPUTE_MODE)

    def set_mode(self, mode: str, partitions: int, deadline: Deadline) -> None:
        """Change the mode; it is not begun after the deadline.

        Raises:
            RetryableError: a process uses the GPU, or that is not known at the deadline.
            PermanentError: the GPU does not support the mode.
        """
        why = f"it is in mode {self.mode} and cannot be switched to {mode}"
        require_unused(self._host, self._nodes(), self._where, deadline, why)
        path = f"bus/pci/devices/{self._address}/{COMPUTE_MODE}"
        try:
            self._writes.write(self._address, path, mode)
        except OSError as error:
            raise self._mode_error(mode, error) from error
        settle_deadline = Deadline.of(SETTLE_TIMEOUT_S)
        while self.mode != mode or len(self._partitions()) != partitions:
            if not settle_deadline.remaining():
                raise RetryableError(
                    f"its driver has created {len(self._partitions())} of the {partitions} partitions of mode {mode}",
                    where=self._where,
                    # Inferred: a display of the board's controller takes one of the 64 minors of older kernels. The
                    # recorded CPX host of ROCm/k8s-device-plugin shows 63 of 64 partitions.
                    hint="check the kernel log (dmesg): with 'Skip xcp node' the kernel has no DRM minor left for it;"
                    " unload the driver of the board's display (ast), or use a newer kernel",
                )
            time.sleep(_POLL_INTERVAL_S)

    def nodes(self, partition: int) -> list[str]:
        """Return the card and render node of a partition in the current mode; RetryableError if there are none."""
        partitions = self._partitions()
        if partition >= len(partitions) or (minor := partitions[partition].render_minor) is None:
            raise RetryableError(
                f"its driver shows no partition {partition}",
                where=self._where,
                hint="check /sys/class/kfd/kfd/topology and the kernel log (dmesg)",
            )
        render = f"renderD{minor}"
        # Each partition after the first is a separate device; its nodes are found by class only.
        drm = (self._host.sysfs / "class/drm" / render).resolve().parent
        cards = [name for name in SysfsDir(drm, []).names() if name.startswith("card")]
        return [f"/dev/dri/{name}" for name in (*cards[:1], render)]

    def _nodes(self) -> list[DeviceNode]:
        paths = [node for index in range(len(self._partitions())) for node in self.nodes(index)]
        return [class_node(self._host, "drm", path.rpartition("/")[2], path) for path in paths]

    def _partitions(self) -> list[KfdNode]:
        return self._topology.nodes([]).get(self._address, [])

    def _mode_error(self, mode: str, error: OSError) -> RetryableError | PermanentError:
        if error.errno == errno.EINVAL:
            return PermanentError(
                f"its driver cannot switch it to mode {mode} in its current memory mode",
                where=self._where,
                hint="request a partition of another mode, or change the memory mode of the node (NPS)",
            )
        if error.errno == errno.EBUSY:
            processes = SysfsDir(self._host.sysfs / _PROCESSES, []).names()
            named = f" (processes {', '.join(processes[:5])})" if processes else ""
            return RetryableError(
                f"the driver reports that it is in use, and cannot switch it to {mode}{named}",
                where=self._where,
                hint="older drivers partition no GPU while any process of the host uses ROCm; the agent retries",
            )
        return RetryableError(
            f"the kernel refused mode {mode}: {error.strerror}",
            where=self._where,
            hint="check the kernel log (dmesg); the agent must be root",
        )

    def _files(self) -> SysfsDir:
        return SysfsDir(self._host.sysfs / "bus/pci/devices" / self._address, [])
