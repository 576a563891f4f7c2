"""The partitions of a GPU that is offered as a whole and in every possible MIG partition.

GPU and partitions consume one counter set, so that the scheduler never allocates two that overlap. Instances
that others created are kept, and partitions that overlap them are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_agent.inventory.api import Capacity, Counter, CounterConsumption, CounterSet
from dra_agent.inventory.nvidia.profiles import MigProfile, Placement, packing_order, profile_label

COUNTERS = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
}
"""Names of counters by the capacity that they count."""

Amounts = dict[str, int]
"""By the name of the counter; memory in bytes."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """An instance that exists on a GPU."""

    id: int
    profile: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Partition:
    """One profile at one place of a GPU."""

    profile: MigProfile
    placement: Placement

    @property
    def parts(self) -> tuple[str | int, ...]:
        """Return the suffix of its name after the GPU's, as for an existing instance."""
        return ("mig", profile_label(self.profile.name), self.placement.start)

    @property
    def amounts(self) -> Amounts:
        """Return the counters that a partition consumes."""
        taken = {"memory": self.profile.memory_bytes}
        taken |= {COUNTERS[name]: count for name, count in self.profile.engines.items()}
        return taken | {f"memory-slice-{number}": 1 for number in self.placement.slices}

    @property
    def text(self) -> str:
        """Return its name for messages."""
        return f"{self.profile.name} at memory slice {self.placement.start}"


class PartitionLayout:
    """All possible partitions of one GPU, and those that foreign instances do not block."""

    def __init__(self, profiles: Sequence[MigProfile], foreign: Sequence[GpuInstance] = ()) -> None:
        self.partitions = [Partition(profile, placement) for profile, placement in packing_order(profiles)]
        """In the order in which they are to be taken."""
        self.whole: Amounts = {}
        """The most that any profile has of each, and every memory slice."""
        for partition in self.partitions:
            for name, amount in partition.amounts.items():
                self.whole[name] = max(amount, self.whole.get(name, 0))
        self.foreign = tuple(foreign)
        self.left = dict(self.whole)
        for instance in foreign:
            for name, amount in self._taken(instance).items():
                self.left[name] = max(0, self.left.get(name, 0) - amount)

    def fits(self, partition: Partition) -> bool:
        """Return True if a partition fits next to the foreign instances."""
        return all(self.left[name] >= amount for name, amount in partition.amounts.items())

    def named(self, profile: int, start: int) -> str:
        """Return the name of an instance for messages."""
        for partition in self.partitions:
            if partition.profile.id == profile and partition.placement.start == start:
                return partition.text
        return f"profile {profile} at memory slice {start}"

    def counters(self, name: str) -> CounterSet:
        """Return the counter set of the GPU of that name, without the share of foreign instances."""
        return CounterSet(name, _counters(self.left))

    def of_whole(self, name: str) -> CounterConsumption:
        """Return the counters that the whole GPU consumes."""
        return CounterConsumption(name, _counters(self.whole))

    def of_partition(self, name: str, partition: Partition) -> CounterConsumption:
        """Return the counters that a partition consumes of its GPU's set."""
        return CounterConsumption(name, _counters(partition.amounts))

    def _taken(self, instance: GpuInstance) -> Amounts:
        for partition in self.partitions:
            if partition.profile.id == instance.profile and partition.placement == instance.placement:
                return partition.amounts
        return {f"memory-slice-{number}": 1 for number in instance.placement.slices}


def _counters(amounts: Amounts) -> dict[str, Counter]:
    return {
        name: Counter(Capacity.of_bytes(amount).value if name == "memory" else str(amount))
        for name, amount in amounts.items()
    }
