"""Kept specs: a repeat returns the spec of its first build, and no other input does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from cdi.test_claim import spec_device
from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.claim_specs import ClaimSpecs
from dra_agent.cdi.edits import DeviceEdits
from dra_agent.cdi.model import ContainerEdits, DeviceNode
from dra_agent.claim import ClaimRef
from dra_agent.errors import PermanentError

DRIVER = "d.example"
CLAIM = ClaimRef("u", "ns", "c")


def prepared(item: SpecDevice) -> SpecDevice:
    """Return a device as the record of a prepared claim has it."""
    return replace(item, allocated=msgspec.structs.replace(item.allocated, cdi_device_ids=("d.example/claim=u-gpu-0",)))


def test_a_repeat_is_not_built_again() -> None:
    specs = ClaimSpecs(DRIVER)
    first = specs.build(CLAIM, [spec_device(identity={"uuid": "G"})])
    assert specs.build(CLAIM, [prepared(spec_device(identity={"uuid": "G"}))]) is first


NODE = ContainerEdits(device_nodes=(DeviceNode("/dev/x", "", "c", 1, 2, permissions="rw"),))


@pytest.mark.parametrize(
    "change",
    [
        lambda: (ClaimRef("u", "ns", "d"), [spec_device()]),
        lambda: (ClaimRef("u", "other", "c"), [spec_device()]),
        lambda: (ClaimRef("v", "ns", "c"), [spec_device()]),
        lambda: (CLAIM, [spec_device("gpu-1")]),
        lambda: (CLAIM, [spec_device("gpu-0", "another")]),
        lambda: (CLAIM, [spec_device(), spec_device("gpu-1")]),
        lambda: (CLAIM, [spec_device(share_id="s")]),
        lambda: (CLAIM, [spec_device(consumed_capacity={"memory": "1Gi"})]),
        lambda: (CLAIM, [spec_device(identity={"uuid": "G"})]),
        lambda: (CLAIM, [spec_device(own=NODE)]),
        lambda: (CLAIM, [spec_device(common=NODE)]),
        lambda: (CLAIM, [spec_device(foreign_ids=("nvidia.com/gpu=G",))]),
        lambda: (CLAIM, [replace(spec_device(), edits=DeviceEdits(ContainerEdits(), notes=("no libraries",)))]),
    ],
)
def test_every_other_input_is_built(change: Callable[[], tuple[ClaimRef, list[SpecDevice]]]) -> None:
    specs = ClaimSpecs(DRIVER)
    before = specs.build(CLAIM, [spec_device()])
    claim, devices = change()
    found = specs.build(claim, devices)
    assert found == build_spec(DRIVER, claim, devices) and found != before
    assert specs.build(CLAIM, [spec_device()]) == before


def test_few_specs_are_kept_and_no_refused_one() -> None:
    specs = ClaimSpecs(DRIVER, max_kept=2)
    built = [specs.build(ClaimRef(uid, "ns", "c"), [spec_device()]) for uid in ("a", "b", "c")]
    again = [specs.build(ClaimRef(uid, "ns", "c"), [spec_device()]) for uid in ("c", "b", "a")]
    assert [one is two for one, two in zip(built, reversed(again), strict=True)] == [False, True, True]
    for _ in range(2):
        with pytest.raises(PermanentError):
            specs.build(CLAIM, [spec_device("gpu-0"), spec_device("gpu-0")])
