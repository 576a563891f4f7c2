"""NVMe controllers: /sys/class/nvme."""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import Tree


@dataclass(frozen=True, slots=True)
class NvmeController:
    """A controller, "nvme0"."""

    number: int
    model: str
    serial: str

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the controller's folder, class link and character node."""
        name = f"nvme{self.number}"
        path = f"{site.path}/nvme/{name}"
        tree.files(
            path,
            {
                "model": self.model,
                "serial": self.serial,
                "state": "live",
                "transport": "pcie",
                "address": site.function.address,
                "dev": f"{MAJORS['nvme']}:{self.number}",
                "uevent": f"MAJOR={MAJORS['nvme']}\nMINOR={self.number}\nDEVNAME={name}",
            },
        )
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/nvme")
        tree.link(f"sys/class/nvme/{name}", path)
        tree.node(f"dev/{name}", MAJORS["nvme"], self.number, 0o600)
