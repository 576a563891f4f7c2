"""An AMD GPU under amdgpu: its sysfs attributes. Its nodes of the compute topology are planned by `simulate.kfd`.

Sources: amdgpu_xcp.c, amdgpu_gfx.c, amdgpu_gmc.c, gmc_v9_0.c (drivers/gpu/drm/amd/amdgpu) and amdxcp/amdgpu_xcp_drv.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_simulate import xcp
from dra_simulate.machine import RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import WRITABLE, Tree

XCP_NODES = 8
"""DRM devices of a GPU that can be partitioned, in every mode (MAX_XCP): one of the GPU, and seven platform devices."""
_ROOT_ONLY = 0o400
_IDLE_MILLIDEGREES = 40_000
"""Junction temperature of an idle GPU; assumed."""


@dataclass(frozen=True, slots=True)
class AmdgpuDriver:
    """Differences between versions of amdgpu."""

    ids: Literal["board", "die", "die-unless-spx"]
    """`unique_id` of a KFD node: the board's, or the one of the first die of the partition."""
    platform_device: str
    """The name of the platform device of a partition, with {} for its number."""
    describes_modes: bool
    """True if `compute_partition_config` exists. These versions list in `available_compute_partition` only the modes of
    the memory mode (avail_xcp_modes); older ones list all modes for the number of dies."""
    counts_memory: bool = False
    """True if the kernel has the cgroup controller dmem."""


LINUX_6_8 = AmdgpuDriver("board", "amdgpu_xcp.{}", describes_modes=False)
"""Up to 6.12. Names of the devices: ROCm/k8s-device-plugin#157."""
LINUX_6_14 = AmdgpuDriver("board", "amdgpu_xcp.{}", describes_modes=True)
"""With `compute_partition_config`, before KFD has ids of partitions; assumed for AMD's packages of ROCm 6.4 too."""
ROCM_7_1 = AmdgpuDriver("die", "amdgpu_xcp_{}", describes_modes=True)
"""Commit 3a75edf93aae without its fix, as amdgpu 6.16.13: a whole GPU too has the id of its first die."""
LINUX_6_18 = AmdgpuDriver("die-unless-spx", "amdgpu_xcp_{}", describes_modes=True, counts_memory=True)
"""Commit 3a75edf93aae with its fix 089702632f1d."""


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A GPU as amdgpu and KFD describe it. `hive` is the number of its XGMI hive."""

    card: int
    render: int
    """Numbers of the GPU's DRM nodes; the nodes of its partitions after the first follow."""
    name: str
    """Of the board's FRU; "" without one."""
    unique_id: int
    """0 for an APU of a desktop or laptop, which has none."""
    memory_bytes: int
    """KFD's report for the whole GPU."""
    compute_units: int
    dies: int
    gfx_version: int
    """As KFD counts: 90402 is gfx942."""
    hive: int = 0
    xgmi_bandwidth: int = 64_000
    """MB/s of the link to each other GPU of the hive."""
    serial: str = ""
    vbios: str = "113-M3000100-103"
    memory_vendor: str = "hynix"
    die_ids: tuple[int, ...] = ()
    """The `unique_id` of every die; with them the chip can be partitioned."""
    platform_device: int | None = None
    """Number of the first platform device of its partitions; None: it has none (a virtual function)."""
    drm_devices: int = XCP_NODES
    """The number of its DRM devices. Kernels with 64 minors have seven for the last of eight GPUs, if another display
    has one; KFD has no node for a partition without a DRM device ("Won't add GPU to topology")."""
    memory_modes: tuple[str, ...] = ()
    """Those that the firmware supports; none: the driver does not list any (an APU, a virtual function)."""
    memory_mode: str = "NPS1"
    carve_out_bytes: int | None = None
    """Of an APU, the part of the host's memory that the driver reports as VRAM; 0 for an MI300A ("Set mc_vram_size = 0
    for APP APU"). None: a card, whose VRAM is all of its memory."""
    gtt_bytes: int = 512 << 30
    """The host's memory that the GPU can map."""
    is_virtual: bool = False
    """A virtual function: its mode is set by the host."""
    media: int = 4
    """Video decoders."""
    mode: str = "SPX"
    """The compute partition mode that it is in."""
    driver: AmdgpuDriver = LINUX_6_8

    @property
    def compute_partitions(self) -> tuple[str, ...]:
        """The modes that its chip has."""
        return xcp.supported_modes(self.dies) if self.die_ids else ()

    @property
    def partitions(self) -> int:
        """The number of its partitions."""
        return xcp.partitions(self.mode, self.dies) if self.die_ids else 1

    @property
    def kfd_nodes(self) -> int:
        """The number of its partitions in KFD."""
        return min(self.partitions, self.drm_devices)

    def accepts(self, mode: str) -> bool:
        """Return True if the driver accepts this mode."""
        return mode in self.compute_partitions and xcp.is_valid(mode, self.dies, self.memory_mode)

    def render_of(self, partition: int) -> int:
        """Return the number of the render node of a partition."""
        return self.render + partition

    def kfd_id_of(self, partition: int) -> int:
        """Return the `unique_id` of the KFD node of a partition."""
        ids = self.driver.ids
        if not self.die_ids or ids == "board" or (ids == "die-unless-spx" and self.mode == "SPX"):
            return self.unique_id
        return self.die_ids[partition * self.dies // self.partitions]

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add amdgpu's attributes, and the devices of partitions."""
        vram = self.memory_bytes if self.carve_out_bytes is None else self.carve_out_bytes
        tree.files(
            site.path,
            {
                "mem_info_vram_total": vram,
                "mem_info_vram_used": 300 << 20 if vram else 0,
                "mem_info_vram_vendor": self.memory_vendor,
                "mem_info_gtt_total": self.gtt_bytes,
                "mem_info_gtt_used": 0,
                "vbios_version": self.vbios,
                "gpu_busy_percent": 0,
                "mem_busy_percent": 0,
                "pcie_replay_count": 0,
            },
        )
        if self.unique_id:
            tree.file(f"{site.path}/unique_id", f"{self.unique_id:016x}")
        if self.name and not self.is_virtual:
            # From the FRU, which a guest cannot read, and which boards for consumers do not have.
            tree.files(site.path, {"product_name": self.name, "serial_number": self.serial})
            tree.files(site.path, {"ras/umc_err_count": "ue: 0\nce: 0"})
        if not self.is_virtual:
            tree.files(f"{site.path}/hwmon/hwmon{self.card}", {"name": "amdgpu", "temp2_input": _IDLE_MILLIDEGREES})
        if self.hive:
            tree.file(f"{site.path}/xgmi_device_id", self.unique_id)
        if self.die_ids:
            self._modes(site.path, tree)
        if self.platform_device is not None:
            for partition in range(1, self.drm_devices):
                self._platform_device(self.platform_device + partition - 1, partition, tree)

    def _modes(self, path: str, tree: Tree) -> None:
        if self.is_virtual:
            # Without a function that switches modes the list is absent, and the mode is read-only.
            tree.file(f"{path}/current_compute_partition", self.mode)
            tree.file(f"{path}/current_memory_partition", self.memory_mode)
            return
        tree.file(f"{path}/current_compute_partition", self.mode, WRITABLE)
        modes = self.compute_partitions
        listed = [mode for mode in modes if self.accepts(mode)] if self.driver.describes_modes else modes
        tree.file(f"{path}/available_compute_partition", ", ".join(listed) or "Not supported")
        tree.file(f"{path}/current_memory_partition", self.memory_mode, WRITABLE)
        if self.memory_modes:
            tree.file(f"{path}/available_memory_partition", ", ".join(self.memory_modes))
        if self.driver.describes_modes:
            self._mode_description("SPX", f"{path}/compute_partition_config", tree)

    def _mode_description(self, mode: str, path: str, tree: Tree) -> None:
        """The kernel describes one mode, which a write to `xcp_config` selects; at start it is SPX."""
        tree.file(f"{path}/supported_xcp_configs", ", ".join(self.compute_partitions))
        tree.file(f"{path}/xcp_config", mode)
        if self.memory_modes:
            possible = xcp.memory_modes(mode, self.memory_modes)
            tree.file(f"{path}/supported_nps_configs", ", ".join(possible) or "Not supported")
        for name, (instances, shared) in xcp.resources(mode, self.dies, media=self.media).items():
            tree.file(f"{path}/{name}/num_inst", instances, _ROOT_ONLY)
            tree.file(f"{path}/{name}/num_shared", shared, _ROOT_ONLY)

    def _platform_device(self, number: int, partition: int, tree: Tree) -> None:
        """A partition after the first: a device without a PCI address, idle in modes that have no such partition."""
        folder = f"sys/devices/platform/{self.driver.platform_device.format(number)}/drm"
        card, render = self.card + partition, self.render_of(partition)
        for name, minor in ((f"card{card}", card), (f"renderD{render}", render)):
            uevent = f"MAJOR={MAJORS['drm']}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor"
            tree.files(f"{folder}/{name}", {"dev": f"{MAJORS['drm']}:{minor}", "uevent": uevent})
            tree.link(f"sys/class/drm/{name}", f"{folder}/{name}")
            tree.node(f"dev/dri/{name}", MAJORS["drm"], minor, 0o660)
