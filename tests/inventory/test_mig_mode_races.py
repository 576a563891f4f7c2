"""GPUs whose MIG mode changes during a scan: values of the mode before are in no description of the mode after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import dra_simulate
from dra_agent.inventory.nvidia.gpu_info import read_gpu
from dra_agent.inventory.nvidia.nvlink import NvLinks
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlBusyError, NvmlClient, acquire
from dra_agent.topology import scan
from eventually import DEADLINE_S

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in range(4)]
SWITCH = 2


class LinkedGpus:
    """GPUs behind NVLink switches; those in MIG mode reach no other one. A handle is an address."""

    def __init__(self) -> None:
        self.divided: set[str] = set()

    def call(self, name: str, handle: str, *among: str, about: str) -> Any:
        if name == "nvmlDeviceGetMigMode":
            return [int(handle in self.divided)] * 2
        if name == "read_nvlinks":
            if handle in self.divided:
                raise NotSupportedError("no NVLink in MIG mode", 3)
            return [(SWITCH, "")] * 18
        return [int(not self.divided.isdisjoint({handle, other})) for other in among]


@pytest.mark.parametrize("number", range(4))
def test_a_gpu_that_is_switched_to_mig_mode_during_a_scan_keeps_the_groups(tmp_path: Path, number: int) -> None:
    for address in ADDRESSES:
        (tmp_path / address).mkdir()
    gpus = LinkedGpus()
    links = NvLinks(cast(NvmlClient, gpus), tmp_path)
    handles = {address: address for address in ADDRESSES}
    links.read(handles, [])
    before = [links.interconnect(address) for address in ADDRESSES]
    assert None not in before and len(set(before)) == 1
    gpus.divided.add(ADDRESSES[number])  # after the scan has found that it was whole
    links.read(handles, [])
    assert [links.interconnect(address) for address in ADDRESSES] == before


class SwitchedGpu:
    """A library whose GPU has less memory in MIG mode; the mode changes after a number of its reads of memory."""

    def __init__(self, library: NvmlClient, switches: int) -> None:
        self.module = library.module
        self._library = library
        self._switches = switches
        self._is_divided = False

    def call(self, name: str, *arguments: Any, about: str) -> Any:
        if name == "nvmlDeviceGetMigMode":
            return [int(self._is_divided)] * 2
        if name == "nvmlDeviceGetMemoryInfo":
            total = 1 if self._is_divided else 2
            if self._switches:
                self._switches -= 1
                self._is_divided = not self._is_divided
            return SimpleNamespace(total=total)
        return self._library.call(name, *arguments, about=about)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[tuple[NvmlClient, Any, str]]:
    """A library, and a handle and the address of a GPU."""
    host = dra_simulate.build("vm-1gpu", tmp_path)
    (address,) = (one.pci_address for one in scan(host).devices if one.driver == "nvidia")
    client = acquire(host.nvml, DEADLINE_S)
    client.start()
    yield client, client.call("nvmlDeviceGetHandleByPciBusId", address.encode(), about=address), address
    client.close()


@pytest.mark.parametrize(("switches", "is_divided"), [(0, False), (1, True), (2, False)])
def test_memory_is_that_of_the_mode(library: tuple[NvmlClient, Any, str], switches: int, is_divided: bool) -> None:
    client, handle, address = library
    gpu = SwitchedGpu(client, switches)
    facts = read_gpu(cast(NvmlClient, gpu), handle, address, [], driver=None)
    assert (facts.mig, facts.memory_bytes) == (is_divided, 1 if is_divided else 2)


def test_a_gpu_whose_mode_changes_at_every_read_keeps_what_is_known(library: tuple[NvmlClient, Any, str]) -> None:
    client, handle, address = library
    with pytest.raises(NvmlBusyError, match="MIG mode changes"):
        read_gpu(cast(NvmlClient, SwitchedGpu(client, 10)), handle, address, [], driver=None)
