"""Graphics and compute nodes of the kernel's DRM: /sys/class/drm, /dev/dri with its links by path, and /dev/accel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_simulate.machine import Machine, RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import Tree


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """A card node and, where the driver makes one, a render node (their numbers: card0, renderD128)."""

    card: int | None
    render: int | None
    card_attributes: Mapping[str, str | int] = field(default_factory=dict)
    """Further attributes of the card's folder."""
    bus_device: str | None = None
    """The directory of virtio's bus that has the nodes ("virtio1")."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the nodes to sysfs and /dev/dri."""
        tree.file("sys/class/drm/version", "drm 1.1.0 20060810")
        if self.card is not None:
            self._node(site, tree, f"card{self.card}", "card", self.card)
            tree.files(f"{self._device(site)}/drm/card{self.card}", dict(self.card_attributes))
        if self.render is not None:
            self._node(site, tree, f"renderD{self.render}", "render", self.render)

    def _device(self, site: RoleContext) -> str:
        return f"{site.path}/{self.bus_device}" if self.bus_device else site.path

    def _node(self, site: RoleContext, tree: Tree, name: str, kind: str, minor: int) -> None:
        device = self._device(site)
        path = f"{device}/drm/{name}"
        major = MAJORS["drm"]
        uevent = f"MAJOR={major}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor"
        tree.files(path, {"dev": f"{major}:{minor}", "uevent": uevent})
        tree.link(f"{path}/device", device)
        tree.link(f"{path}/subsystem", "sys/class/drm")
        tree.link(f"sys/class/drm/{name}", path)
        tree.link(f"sys/dev/char/{major}:{minor}", path)
        tree.node(f"dev/dri/{name}", major, minor, 0o660)
        tree.link(f"dev/dri/by-path/pci-{site.function.address}-{kind}", f"dev/dri/{name}")


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Device memory that a DRM driver has registered with the cgroup controller dmem (kernel 6.14 and later)."""

    name: str
    """The driver's name of the region: "vram0" under xe, "vram" under amdgpu."""
    size: int
    """Bytes."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add nothing below the function: the kernel lists the regions of all functions in one file, see `plan`."""


def plan(machine: Machine, tree: Tree) -> None:
    """Add /sys/fs/cgroup/dmem.capacity, if a driver has registered memory."""
    lines = [
        f"drm/{function.address}/{region.name} {region.size}\n" for function, region in machine.with_role(MemoryRegion)
    ]
    if lines:
        tree.file("sys/fs/cgroup/dmem.capacity", "".join(lines).encode())


@dataclass(frozen=True, slots=True)
class AccelNodes:
    """A compute accelerator's node, "accel0", with the control node that Habana's driver adds."""

    number: int
    control: bool = False

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the nodes to sysfs and /dev/accel."""
        self._node(site, tree, f"accel{self.number}", self.number)
        if self.control:
            self._node(site, tree, f"accel_controlD{self.number}", 128 + self.number)

    def _node(self, site: RoleContext, tree: Tree, name: str, minor: int) -> None:
        path = f"{site.path}/accel/{name}"
        major = MAJORS["accel"]
        uevent = f"MAJOR={major}\nMINOR={minor}\nDEVNAME=accel/{name}\nDEVTYPE=accel_minor"
        tree.files(path, {"dev": f"{major}:{minor}", "uevent": uevent})
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/accel")
        tree.link(f"sys/class/accel/{name}", path)
        tree.link(f"sys/dev/char/{major}:{minor}", path)
        tree.node(f"dev/accel/{name}", major, minor, 0o660)
