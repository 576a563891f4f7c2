"""Partitions of every product with MIG: names, counters, placements, order, and selectors after a driver update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.profiles import profile_name
from dra_simulate import mig_models
from dra_simulate.models import AMPERE, GpuModel
from inventory.mig_families import FAMILIES, NAME, partitioned, partitions

families = pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)


def amounts(device: Device) -> dict[str, str]:
    (takes,) = device.consumes_counters
    return {name: counter.value for name, counter in takes.counters.items()}


@families
def test_the_name_of_every_profile_follows_from_its_size(model: GpuModel) -> None:
    """The fallback for drivers that do not name profiles while MIG mode is off."""
    for profile in model.mig:
        name = profile_name(profile.profile, profile.slices, profile.memory_mib, model.memory_bytes)
        assert f"MIG {name}" == profile.name


@families
def test_every_placement_is_a_device_that_takes_its_slices_and_engines(tmp_path: Path, model: GpuModel) -> None:
    inventory = partitioned(tmp_path / "host", model)
    assert inventory.problems == ()
    found = partitions(inventory)
    places = [(profile, place) for profile in model.mig for place in profile.placements]
    assert len(found) == len({device.name for device in found}) == len(places)
    by_place = {device.identity["mig"]: device for device in found}
    for profile, (start, size) in places:
        device = by_place[f"{profile.id}:{start}:{size}"]
        taken = amounts(device)
        slices = {int(name.rpartition("-")[2]) for name in taken if name.startswith("memory-slice-")}
        assert slices == set(range(start, start + size))
        assert device.attributes["profile"].string == profile.name.removeprefix("MIG ")
        assert taken["multiprocessors"] == str(profile.multiprocessors)
        for counter, count in (
            ("decoders", profile.decoders),
            ("encoders", profile.encoders),
            ("ofa-engines", profile.ofa),
        ):
            assert taken.get(counter, "0") == str(count)
    if model.architecture != AMPERE:
        whole = inventory.device(NAME)
        assert whole is not None and len([name for name in amounts(whole) if name.startswith("memory-slice")]) in (4, 8)


@families
def test_small_profiles_come_first_and_as_many_as_the_driver_allows_fit(tmp_path: Path, model: GpuModel) -> None:
    """Taking the first device that fits, as the scheduler does, reaches the most instances of each profile."""
    inventory = partitioned(tmp_path / "host", model)
    found = partitions(inventory)
    sizes = [int(device.identity["mig"].rpartition(":")[2]) for device in found]
    assert sizes == sorted(sizes)
    (counters,) = inventory.counter_sets["gpu"]
    for profile in model.mig:
        left = {name: _number(counter.value) for name, counter in counters.counters.items()}
        count = 0
        for device in found:
            taken = {name: _number(value) for name, value in amounts(device).items()}
            fits = all(left[name] >= amount for name, amount in taken.items())
            if device.identity["mig"].startswith(f"{profile.id}:") and fits:
                count += 1
                left = {name: amount - taken.get(name, 0) for name, amount in left.items()}
        assert count == profile.max_instances, profile.name


def _number(text: str) -> int:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


UPDATES = {
    "memory of one profile": (mig_models.B200, mig_models.B200_LATER_DRIVER),
    "names, too": (mig_models.GB200, mig_models.GB200_LATER_DRIVER),
}


@pytest.mark.parametrize(("before", "after"), UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("gib", [18, 40, 80])
def test_a_selector_by_memory_selects_the_same_places_after_an_update_of_the_driver(
    tmp_path: Path, before: GpuModel, after: GpuModel, gib: int
) -> None:
    def selected(name: str, model: GpuModel) -> list[str]:
        found = partitions(partitioned(tmp_path / name, model))
        return [
            device.identity["mig"]
            for device in found
            if _number(json.loads(device.json)["capacity"]["memory"]["value"]) >= gib << 30
        ]

    places = selected("before", before)
    assert places and places == selected("after", after)


def test_a_selector_by_profile_does_not(tmp_path: Path) -> None:
    def profiles(name: str, model: GpuModel) -> set[str | None]:
        return {device.attributes["profile"].string for device in partitions(partitioned(tmp_path / name, model))}

    before = profiles("before", mig_models.GB200)
    after = profiles("after", mig_models.GB200_LATER_DRIVER)
    assert "1g.24gb" in before and "1g.24gb" not in after
