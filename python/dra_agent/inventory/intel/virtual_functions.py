"""A divided Intel GPU: its virtual functions with what the physical one has assigned to them, and what is left of it.

Quotas and scheduling are xe's, per virtual function: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov
(`sriov_admin/vfN/profile/`: `vram_quota` in bytes since kernel 7.0, `exec_quantum_ms`, `preempt_timeout_us` and
`sched_priority` since 6.19). Older kernels say nothing there, and what they do not say is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_agent.inventory.api import Counter, CounterConsumption, CounterSet
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction as Function

FUNCTIONS, MEMORY = "virtual-functions", "memory"


@dataclass(frozen=True, slots=True)
class VfResources:
    """What one virtual function has; None is what nobody says."""

    memory: int | None
    """Bytes of the GPU's memory that are its alone."""
    quantum_ms: int | None
    """For how long it runs in its turn; 0 for as long as it wants."""
    timeout_us: int | None
    """How long it is waited for at the end of its turn; 0 for ever."""
    priority: str | None


class VirtualFunctions:
    """Those of one physical function."""

    def __init__(self, physical: Function, files: SysfsDir, memory: int | None) -> None:
        """Take the physical function's folder, and the bytes of memory that the GPU has."""
        self._physical = physical
        self._files = files
        self._memory = memory

    def assigned(self, address: str) -> VfResources:
        """Say what a function of this address has; nothing is known of one that the physical function does not list."""
        if address not in self._physical.virtfns:
            return VfResources(None, None, None, None)
        number = self._physical.virtfns.index(address) + 1
        profile = self._files.subdir(f"sriov_admin/vf{number}/profile")
        return VfResources(
            # 0 is a function that has none of its own: it gets what the driver provisions when it is used.
            profile.number("vram_quota") or None,
            profile.number("exec_quantum_ms"),
            profile.number("preempt_timeout_us"),
            _chosen(profile.text("sched_priority")),
        )

    def counters(self, name: str) -> CounterSet:
        """Give what the physical function and the virtual ones share."""
        return CounterSet(name, self._all())

    def whole(self, name: str) -> CounterConsumption:
        """Say what the physical function takes: everything, so that it is given while no virtual one is."""
        return CounterConsumption(name, self._all())

    def part(self, name: str, address: str) -> CounterConsumption:
        """Say what a virtual function takes."""
        taken = {FUNCTIONS: Counter("1")}
        memory = self.assigned(address).memory
        if MEMORY in self._all() and memory is not None:
            taken[MEMORY] = Counter(str(memory))
        return CounterConsumption(name, taken)

    @property
    def remaining(self) -> int | None:
        """The bytes of memory that are assigned to nobody: what the physical function itself can use."""
        return None if self._memory is None else max(self._memory - self._given, 0)

    @property
    def _given(self) -> int:
        return sum(self.assigned(address).memory or 0 for address in self._physical.virtfns)

    def _all(self) -> dict[str, Counter]:
        counters = {FUNCTIONS: Counter(str(len(self._physical.virtfns)))}
        # Quotas are rounded up to what the hardware can divide: all of them must fit.
        if self._memory is not None and self._given > 0:
            counters[MEMORY] = Counter(str(max(self._memory, self._given)))
        return counters


def _chosen(text: str | None) -> str | None:
    """Give the chosen one of "low [normal] high"; the word itself where there is no choice."""
    words = (text or "").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), words[0] if len(words) == 1 else None)
