"""Possible MIG instances of a GPU: NVML's tables of profiles and placements, in either mode.

Sizes and placements are from NVML for each GPU; this module has no table of them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient, NvmlError

_MIB, _GIB = 1 << 20, 1 << 30
_MAX_PLACEMENTS = 32
INVALID_ARGUMENT = 2
"""Of nvmlReturn_t: this library knows no profile of that number."""

_SUFFIXES = {
    0x07: "+me",
    0x08: "+me",
    0x0A: "+gfx",
    0x0B: "+gfx",
    0x0C: "+gfx",
    0x0D: "-me",
    0x0E: "-me",
    0x0F: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""By NVML_GPU_INSTANCE_PROFILE_*: REV1, GFX, NO_ME and ALL_ME (nvml.h)."""

_ENGINES = {
    "multiprocessors": "multiprocessorCount",
    "copyEngines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpegEngines": "jpegCount",
    "ofaEngines": "ofaCount",
}
"""Capacities and the fields of nvmlGpuInstanceProfileInfo_v2_t that they come from."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of an instance, in memory slices of its GPU."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """Return the memory slices that it consumes."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: Placement) -> bool:
        """Return True if both use a common slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of GPU instance."""

    id: int
    """The profile id for NVML, as nvidia-smi shows it."""
    name: str
    """As nvidia-smi shows it: "1g.10gb", "1g.10gb+me"."""
    slices: int
    """Compute slices."""
    memory_bytes: int
    placements: tuple[Placement, ...]
    engines: dict[str, int] = field(default_factory=dict)
    """By the name of the capacity; none is 0."""


def read_profiles(nvml: NvmlClient, handle: Any, address: str) -> tuple[MigProfile, ...]:
    """Return the profiles of a GPU in NVML's order. Raises CallTimeoutError, GpuLostError and NvmlError."""

    def ask(name: str, *arguments: Any) -> Any:
        return nvml.call(name, *arguments, about=address)

    numbers = range(nvml.module.NVML_GPU_INSTANCE_PROFILE_COUNT)
    infos = {number: info for number in numbers if (info := _info(ask, handle, number, 2)) is not None}
    names = {number: _name(info) for number, info in infos.items()}
    if not infos:
        # nvml.h permits a driver to refuse version 2, and only that, while MIG mode is off. Version 1 has no name.
        infos = {number: info for number in numbers if (info := _info(ask, handle, number, 1)) is not None}
        total = int(ask("nvmlDeviceGetMemoryInfo", handle).total) if infos else 0
        names = {
            number: profile_name(number, info.sliceCount, info.memorySizeMB, total) for number, info in infos.items()
        }
    profiles = []
    for number, info in infos.items():
        if not info.instanceCount:
            continue
        placements = _placements(nvml.module, ask, handle, info.id)
        engines = {name: int(getattr(info, one)) for name, one in _ENGINES.items() if getattr(info, one)}
        profiles.append(
            MigProfile(info.id, names[number], info.sliceCount, info.memorySizeMB * _MIB, placements, engines)
        )
    return tuple(profile for profile in profiles if profile.placements)


def profile_name(number: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """Return the driver's name of a profile by its number in NVML, compute slices, and memory.

    The memory in a name is the share of the GPU's, in whole eighths, of its size in whole GB: go-nvlib,
    pkg/nvlib/device/mig_profile.go.
    """
    eighths = math.ceil(memory_mib * _MIB * 8 / total_bytes)
    gigabytes = math.floor(eighths / 8 * math.ceil(total_bytes / _GIB) + 0.5)
    return f"{slices}g.{gigabytes}gb{_SUFFIXES.get(number, '')}"


def profile_label(profile: str) -> str:
    """Convert a profile's name to a part of a device name: "+me" (with media engines) and "-me" (without) differ."""
    plain = profile.removesuffix("-me")
    return plain if plain == profile else f"{plain}-nome"


def _info(ask: Callable[..., Any], handle: Any, number: int, version: int) -> Any:
    try:
        return ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, version)
    except NotSupportedError:
        return None
    except NvmlError as error:
        if error.code == INVALID_ARGUMENT:
            return None
        raise


def _name(info: Any) -> str:
    """Take the last word of "MIG 1g.10gb"."""
    raw = info.name
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    return text.rpartition(" ")[2]


def _placements(module: Any, ask: Callable[..., Any], handle: Any, profile: int) -> tuple[Placement, ...]:
    places = (module.c_nvmlGpuInstancePlacement_t * _MAX_PLACEMENTS)()
    count = ctypes.c_uint(_MAX_PLACEMENTS)
    try:
        ask("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile, places, ctypes.byref(count))
    except NotSupportedError:
        return ()
    return tuple(Placement(place.start, place.size) for place in places[: count.value])


def packing_order(profiles: Sequence[MigProfile]) -> list[tuple[MigProfile, Placement]]:
    """Return every profile at every placement, in the order of allocation."""
    everything = [(profile, placement) for profile in profiles for placement in profile.placements]

    def order(one: tuple[MigProfile, Placement]) -> tuple[int, int, int, int, int, int]:
        profile, placement = one
        return (
            placement.size,
            profile.slices,
            sum(profile.engines.values()),
            profile.id,
            _spoils(one, everything),
            -placement.start,
        )

    return sorted(everything, key=order)


def _spoils(one: tuple[MigProfile, Placement], everything: Sequence[tuple[MigProfile, Placement]]) -> int:
    """Add up the memory slices of all places of other profiles that an instance there would make unavailable."""
    profile, placement = one
    return sum(other.size for kind, other in everything if kind.id != profile.id and placement.overlaps(other))
