"""For every product, the counters allow two partitions together exactly where the driver creates both."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from pathlib import Path

import pynvml
import pytest

from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.nvidia.partitions import GpuInstance, PartitionLayout
from dra_agent.inventory.nvidia.profiles import MigProfile, Placement, read_profiles
from dra_simulate import build_machine
from dra_simulate.models import GpuModel
from eventually import DEADLINE_S
from inventory.mig_families import ADDRESS, FAMILIES, machine_of, switch_on

Place = tuple[int, int, int]
"""Profile id, first slice, slices."""


def read(path: Path) -> tuple[MigProfile, ...]:
    """Return the profiles of the GPU, as the agent reads them."""
    with ExitStack() as stack:
        library = acquire(path, DEADLINE_S)
        stack.callback(library.close)
        library.start()
        device = library.call("nvmlDeviceGetHandleByPciBusId", ADDRESS.encode(), about=ADDRESS)
        return read_profiles(library, device, ADDRESS)


def create(device: object, place: Place) -> object | None:
    """Create an instance; None if the driver has no room for it."""
    profile, start, size = place
    place_of = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))
    try:
        made: object = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, place_of)
    except pynvml.NVMLError as error:
        assert error.value == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        return None
    return made


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_pairs_that_fit_are_pairs_that_the_driver_creates(
    tmp_path: Path, model: GpuModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of calls for a product: they are made in this process, not by a worker process."""
    machine = machine_of(model)
    host = build_machine(machine, tmp_path / "host")
    switch_on(tmp_path / "host", machine)
    assert host.nvml_library is not None
    profiles = read(host.nvml_library)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(host.nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByPciBusId(ADDRESS.encode())
    places = [(profile.id, place.start, place.size) for profile in profiles for place in profile.placements]
    different: list[tuple[Place, Place]] = []
    for first in places:
        made = create(device, first)
        assert made is not None
        layout = PartitionLayout(profiles, [GpuInstance(0, first[0], Placement(*first[1:]))])
        for partition in layout.partitions:
            second = (partition.profile.id, partition.placement.start, partition.placement.size)
            other = create(device, second)
            if (other is not None) != layout.fits(partition):
                different.append((first, second))
            if other is not None:
                pynvml.nvmlGpuInstanceDestroy(other)
        pynvml.nvmlGpuInstanceDestroy(made)
    pynvml.nvmlShutdown()
    assert different == []
