"""From the numbers of an instance, as NVML's events have them, to the devices that are published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.events import NO_INSTANCE, EventTargets
from dra_agent.inventory.nvidia.nvml_client import NvmlClient

ADDRESS = "0000:3b:00.0"


class Library(NvmlClient):
    """Knows where instances lie: by GPU instance, profile id, start and size."""

    def __init__(self, **instances: tuple[int, int, int]) -> None:
        self.instances = {int(name.removeprefix("gi")): place for name, place in instances.items()}
        self.silent = False
        self.lanes: set[str] = set()

    def call(self, name: str, *arguments: Any, about: str = "", timeout: float | None = None) -> Any:
        self.lanes.add(about)
        if self.silent:
            raise RetryableError("no answer")
        if name == "nvmlDeviceGetGpuInstanceById":
            if arguments[1] not in self.instances:
                raise RetryableError("Not Found")
            return self.instances[arguments[1]]
        profile, start, size = arguments[0]
        return SimpleNamespace(profileId=profile, placement=SimpleNamespace(start=start, size=size))


def device(name: str, address: str = ADDRESS, **identity: str) -> Device:
    return Device(name, "gpu", "nvidia", address, attributes={}, identity=identity)


STATIC = (
    device("one", gpu_instance="9", compute_instance="0"),
    device("other", gpu_instance="11", compute_instance="0"),
    device("third", gpu_instance="11", compute_instance="1"),
    device("neighbour", "0000:43:00.0", gpu_instance="9", compute_instance="0"),
)
DYNAMIC = (
    device("whole", mig="whole"),
    device("1g-4", mig="19:4:1"),
    device("1g-5", mig="19:5:1"),
    device("2g-4", mig="14:4:2"),
    device("neighbour", "0000:43:00.0", mig="19:4:1"),
)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((9, 0), ("one",)),
        ((9, NO_INSTANCE), ("one",)),
        ((11, 1), ("third",)),
        ((11, NO_INSTANCE), ("other", "third")),
        ((NO_INSTANCE, NO_INSTANCE), ()),
        ((4, 0), ()),
    ],
)
def test_an_instance_that_was_there_is_known_by_its_numbers(
    numbers: tuple[int, int], expected: tuple[str, ...]
) -> None:
    affected = EventTargets(Library())
    affected.refresh(STATIC)
    assert affected.names(ADDRESS, "gpu", *numbers) == expected


def test_one_that_was_made_for_a_claim_is_the_partition_at_its_place() -> None:
    library = Library(gi7=(19, 4, 1), gi3=(14, 4, 2))
    affected = EventTargets(library)
    affected.refresh(DYNAMIC)
    assert affected.names(ADDRESS, "gpu", 7, 0) == ("1g-4",)
    assert affected.names(ADDRESS, "gpu", 3, NO_INSTANCE) == ("2g-4",)
    assert affected.names(ADDRESS, "gpu", NO_INSTANCE, NO_INSTANCE) == ()
    assert library.lanes == {ADDRESS}


def test_one_that_is_gone_is_where_it_was_last() -> None:
    library = Library(gi7=(19, 4, 1))
    affected = EventTargets(library)
    affected.refresh(DYNAMIC)
    affected.remember(ADDRESS, 8, "19:5:1")
    assert affected.names(ADDRESS, "gpu", 7, 0) == ("1g-4",)
    library.silent = True
    assert affected.names(ADDRESS, "gpu", 7, 0) == ("1g-4",)
    assert affected.names(ADDRESS, "gpu", 8, 0) == ("1g-5",)
    assert affected.names(ADDRESS, "gpu", 9, 0) == (), "the instance is unknown, so the event counts for all"
