"""An AMD GPU under amdgpu: its sysfs attributes. Its node of the compute topology is planned by `simulate.kfd`."""

from __future__ import annotations

from dataclasses import dataclass

from dra_agent.simulate.machine import Site
from dra_agent.simulate.tree import WRITABLE, Tree


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

    def plan(self, site: Site, tree: Tree) -> None:
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
            tree.file(f"{site.path}/current_compute_partition", self.compute_partitions[0], WRITABLE)
        if self.memory_partitions:
            tree.file(f"{site.path}/available_memory_partition", ", ".join(self.memory_partitions))
            tree.file(f"{site.path}/current_memory_partition", self.memory_partitions[0], WRITABLE)
        if self.hive:
            tree.file(f"{site.path}/xgmi_device_id", self.unique_id)
