"""A device of each family is bound to vfio-pci for a claim, and returned to its driver, on one simulated host."""

from __future__ import annotations

from pathlib import Path

import pytest

from deadlines import a_minute
from device_setup.vfio.bench import Bench
from dra_agent.device_setup.vfio import VfioConfig
from dra_simulate.profiles import load_profile

DEVICES = {
    "nvidia-gpu": ("0000:1a:00.0", "nvidia"),
    "amd-gpu": ("0000:1b:00.0", "amdgpu"),
    "intel-gpu": ("0000:1c:00.0", "xe"),
    "nic": ("0000:cb:00.0", "bnxt_en"),
    "intel-fpga": ("0000:99:00.0", "dfl-pci"),
    "gaudi": ("0000:98:00.0", "habanalabs"),
}
"""Address and driver of a device of the machine `mixed`. The group of its Xilinx card has another function too."""


@pytest.mark.parametrize("kind", DEVICES)
def test_a_device_of_each_family_is_bound_and_returned(kind: str, tmp_path: Path) -> None:
    address, driver = DEVICES[kind]
    bench = Bench(tmp_path, load_profile("mixed"))
    assert bench.driver(address) == driver
    item, vfio = bench.device(address), bench.vfio()
    assert item.device.attributes["type"].value == "vfio"
    outcome = vfio.set_up("uid-1", [item], VfioConfig(), None, a_minute())
    assert bench.driver(address) == "vfio-pci"
    edits = outcome.edits[item.key]
    assert edits is not None and len(edits.device_nodes) + len(edits.mounts) >= 2, "the group and the container of VFIO"
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(address) == driver
