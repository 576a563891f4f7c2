"""Compute partition modes of AMD GPUs as devices on shared counters, so that the scheduler never mixes two modes.

A mode divides the whole GPU into equal parts. Partitions of one mode all fit together; any two of different modes must
not. One counter cannot express that (half of a GPU and an eighth of it are less than a whole), so each partition of a
mode that is not the finest has a counter: it takes all of it, every partition of a finer mode takes its
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from dra_agent.inventory.api import Counter, CounterConsumption, CounterSet
from dra_agent.inventory.sysfs import SysfsDir

WHOLE = "SPX"
DIES = "dies"
"""The counter of accelerator dies (XCC), of which partitions consist."""

PARTS = {WHOLE: 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""Partitions of a mode; CPX has as many as the GPU has dies."""
_MEMORY = {WHOLE: (1,), "DPX": (1, 2), "TPX": (1, 4), "QPX": (1, 4), "CPX": (1, 4)}
"""Memory partitions (NPS) with which a mode is possible, where the kernel does not report it.

Source: __aqua_vanjaram_get_px_mode_info in drivers/gpu/drm/amd/amdgpu/aqua_vanjaram.c.
"""


_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to divide a GPU."""

    name: str
    """As the driver spells it: "CPX"."""
    partitions: int


@dataclass(frozen=True, slots=True)
class ModeDescription:
    """The modes of a GPU as newer kernels report them in `compute_partition_config` (amdgpu_xcp.c).

    These kernels list in `available_compute_partition` only modes that the memory mode allows (avail_xcp_modes), so the
    list needs no table. They describe one mode in detail: the last value written to `xcp_config`.
    """

    supported: frozenset[str]
    """Modes of the chip, in any memory mode."""
    described: str | None
    memory: frozenset[int] | None
    """Memory partitions with which the described mode is possible; None on an APU and where the firmware does not
    report any."""


def read_description(files: SysfsDir) -> ModeDescription | None:
    """Read the description in the folder of a PCI function; None where the kernel has none."""
    folder = files.subdir("compute_partition_config")
    supported = folder.text("supported_xcp_configs")
    if supported is None:
        return None
    memory = folder.text("supported_nps_configs")
    numbers = (
        frozenset(memory_partitions(name) for name in _names(memory) if name.startswith("NPS")) if memory else None
    )
    return ModeDescription(frozenset(_names(supported)), folder.text("xcp_config"), numbers)


class Modes:
    """The partition modes of one GPU, the coarsest first; the first is the whole GPU."""

    def __init__(
        self, available: str, dies: int, memory_partitions: int, description: ModeDescription | None = None
    ) -> None:
        """Parse the driver's list ("SPX, DPX, QPX, CPX"), the number of dies and of memory partitions (NPS4: 4).

        Without a description it is the list of the chip, limited by a table to the modes of the memory mode.
        """
        self.dies = dies
        modes = [Mode(name, PARTS.get(name, dies)) for name in _names(available) if name in PARTS or name == "CPX"]
        possible = [mode for mode in modes if _is_possible(mode, dies, memory_partitions, description)]
        # Two names for the same division are one mode.
        unique = {mode.partitions: mode for mode in reversed(possible)}
        self.all = tuple(unique[partitions] for partitions in sorted(unique))

    @property
    def divided(self) -> tuple[Mode, ...]:
        """The modes in which a GPU is more than one device."""
        return tuple(mode for mode in self.all if mode.partitions > 1)

    def counters(self, name: str) -> CounterSet:
        """Return the counter set of a GPU of this name."""
        guards = dict.fromkeys(self._guards(), Counter(str(self._unit)))
        return CounterSet(name, {DIES: Counter(str(self.dies)), **guards})

    def whole(self, name: str) -> CounterConsumption:
        """Return the consumption of the whole GPU: all counters."""
        return CounterConsumption(name, self.counters(name).counters)

    def part(self, name: str, mode: Mode, index: int) -> CounterConsumption:
        """Return the consumption of one partition."""
        taken = {DIES: Counter(str(self.dies // mode.partitions))}
        share = Counter(str(self._unit // mode.partitions))
        own = _guard(mode, index)
        for guarded in self.divided[:-1]:
            for number in range(guarded.partitions):
                guard = _guard(guarded, number)
                if guard == own:
                    taken[guard] = Counter(str(self._unit))
                elif mode.partitions > guarded.partitions:
                    taken[guard] = share
        return CounterConsumption(name, taken)

    def divisible_memory(self, amount: int | None) -> int | None:
        """Return an amount that does not depend on the mode in which KFD reported it, in bytes.

        The driver rounds the share of each partition down to pages (amdgpu_amdkfd_xcp_memory_size), so their sum can be
        less than the whole.
        """
        step = self._unit * _PAGE_BYTES
        return amount and amount // step * step

    @property
    def _unit(self) -> int:
        """The value of a guard: every number of partitions divides it."""
        return lcm(*(mode.partitions for mode in self.all)) if self.all else 1

    def _guards(self) -> Sequence[str]:
        return [_guard(mode, number) for mode in self.divided[:-1] for number in range(mode.partitions)]


def known_mode(files: SysfsDir, attribute: str) -> str | None:
    """Read a compute or memory mode; None where the driver does not know it, which it reports in words."""
    text = files.text(attribute)
    return None if text in ("UNKNOWN", "Not supported") else text


def memory_partitions(mode: str | None) -> int:
    """Convert "NPS4" to 4; 1 if the driver does not report it."""
    number = (mode or "").removeprefix("NPS")
    return int(number) if number.isdecimal() and int(number) > 0 else 1


def _guard(mode: Mode, number: int) -> str:
    return f"{mode.name.lower()}-{number}"


def lists_modes(available: str | None) -> bool:
    """Return True if the driver's list has a mode that divides the GPU."""
    return any(name in PARTS or name == "CPX" for name in _names(available or "") if name != WHOLE)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _is_possible(mode: Mode, dies: int, memory: int, description: ModeDescription | None) -> bool:
    if not 1 <= mode.partitions <= dies or dies % mode.partitions or (mode.name == "CPX" and dies < 2):
        return False
    if description is not None:
        is_described = mode.name == description.described and description.memory is not None
        return mode.name in description.supported and (not is_described or memory in (description.memory or ()))
    # Two dies at least are one partition of QPX, and two pairs one of DPX (__aqua_vanjaram_is_valid_mode).
    enough = {"DPX": dies % 4 == 0, "QPX": dies // 4 >= 2}.get(mode.name, True)
    return enough and memory in _MEMORY[mode.name]
