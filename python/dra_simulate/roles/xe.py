"""Provisioning of the virtual functions of an Intel GPU: sriov_admin below the physical function.

After the kernel's ABI document sysfs-driver-intel-xe-sriov (6.19; vram_quota since 7.0) and xe_sriov_pf_sysfs.c: all
scheduling parameters are unlimited by default, and only the physical function can have priority "high".
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import RoleContext
from dra_simulate.tree import WRITABLE, Tree


@dataclass(frozen=True, slots=True)
class VfProvisioning:
    """Folders for the physical function and every possible virtual one; `enabled` of them exist."""

    total: int
    enabled: int
    quota: int
    """Bytes of memory of each enabled function."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the folders, with a link to each function that exists."""
        admin = f"{site.path}/sriov_admin"
        stem = site.path.rpartition(".")[0]
        self._function(f"{admin}/pf", tree)
        tree.file(f"{admin}/pf/profile/sched_priority", "[low] normal high", WRITABLE)
        tree.link(f"{admin}/pf/device", site.path)
        for number in range(1, self.total + 1):
            folder = f"{admin}/vf{number}"
            self._function(folder, tree)
            tree.file(f"{folder}/profile/sched_priority", "[low] normal")
            tree.file(f"{folder}/profile/vram_quota", self.quota if number <= self.enabled else 0, WRITABLE)
            if number <= self.enabled:
                tree.link(f"{folder}/device", f"{stem}.{number}")

    def _function(self, folder: str, tree: Tree) -> None:
        tree.files(f"{folder}/profile", {"exec_quantum_ms": 0, "preempt_timeout_us": 0}, WRITABLE)
