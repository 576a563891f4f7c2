"""An AMD GPU under amdgpu: its sysfs attributes. Its node of the compute topology is planned by `simulate.kfd`."""

from __future__ import annotations

from dataclasses import dataclass

from dra_agent.simulate.machine import RoleContext
from dra_agent.simulate.system import MAJORS
from dra_agent.simulate.tree import WRITABLE, Tree

_FIRST_RENDER, _MOST_GPUS = 128, 8
"""Render nodes are numbered from 128; eight GPUs of eight partitions are the most that a host has."""


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A GPU as amdgpu and KFD describe it. `node` is its number in the compute topology, `hive` that of its XGMI."""

    node: int
    render: int
    name: str
    unique_id: int
    memory_bytes: int
    compute_units: int
    dies: int
    gfx_version: int
    """As KFD counts: 90402 is gfx942."""
    hive: int = 0
    serial: str = ""
    compute_partitions: tuple[str, ...] = ()
    memory_partitions: tuple[str, ...] = ()
    mode: str | None = None
    """The compute partition mode that it is in; None: the first of `compute_partitions`."""

    @property
    def partitions(self) -> int:
        """How many GPUs it shows itself as."""
        return {"DPX": 2, "TPX": 3, "QPX": 4, "CPX": self.dies}.get(self.mode or "SPX", 1)

    def render_of(self, partition: int) -> int:
        """Number of the render node: partitions after the first have their own, after those of all GPUs."""
        own = self.render - _FIRST_RENDER
        return self.render if partition == 0 else _FIRST_RENDER + _MOST_GPUS + own * (_MOST_GPUS - 1) + partition - 1

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add amdgpu's attributes; partition modes can be written where there are several."""
        tree.files(
            site.path,
            {
                "mem_info_vram_total": self.memory_bytes,
                "mem_info_vram_used": 300 << 20,
                "mem_info_vram_vendor": "hynix",
                "mem_info_gtt_total": 512 << 30,
                "mem_info_gtt_used": 0,
                "unique_id": f"{self.unique_id:016x}",
                "product_name": self.name,
                "serial_number": self.serial,
                "vbios_version": "113-M3000100-103",
                "gpu_busy_percent": 0,
                "mem_busy_percent": 0,
                "pcie_replay_count": 0,
            },
        )
        if self.compute_partitions:
            tree.file(f"{site.path}/available_compute_partition", ", ".join(self.compute_partitions))
            mode = self.mode or self.compute_partitions[0]
            tree.file(f"{site.path}/current_compute_partition", mode, WRITABLE)
            for partition in range(1, self.partitions):
                _partition_nodes(self.render_of(partition), tree)
        if self.memory_partitions:
            tree.file(f"{site.path}/available_memory_partition", ", ".join(self.memory_partitions))
            tree.file(f"{site.path}/current_memory_partition", self.memory_partitions[0], WRITABLE)
        if self.hive:
            tree.file(f"{site.path}/xgmi_device_id", self.unique_id)


def _partition_nodes(render: int, tree: Tree) -> None:
    """Nodes of a partition after the first: a platform device without an address (amdgpu_xcp_drv.c)."""
    number = render - _FIRST_RENDER
    folder = f"sys/devices/platform/amdgpu_xcp_{number}/drm"
    for name, minor in ((f"card{number}", number), (f"renderD{render}", render)):
        uevent = f"MAJOR={MAJORS['drm']}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor"
        tree.files(f"{folder}/{name}", {"dev": f"{MAJORS['drm']}:{minor}", "uevent": uevent})
        tree.link(f"sys/class/drm/{name}", f"{folder}/{name}")
        tree.node(f"dev/dri/{name}", MAJORS["drm"], minor, 0o660)
