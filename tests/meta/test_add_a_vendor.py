"""Adding a vendor takes exactly the steps of docs/contributing/add-a-vendor.md."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_agent.cdi.edits
import dra_agent.inventory
import dra_agent.telemetry.sources
from dra_agent.cdi.edits.registry import EditProviders
from dra_agent.inventory import vendors
from dra_agent.inventory.collector import collect
from dra_agent.simulate.builder import build_machine
from dra_agent.simulate.machine import Function, HostBridge, Machine, NumaNode, PciId
from dra_agent.simulate.roles.drm import DrmNodes
from dra_agent.slices import desired_slices
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sources.registry import SourceRegistry
from dra_agent.topology import scan

PAGE = Path(__file__).parents[2] / "docs/contributing/add-a-vendor.md"
MODULE = re.compile(r"```python\n# python/dra_agent/(?P<path>\S+)\n(?P<source>.*?)```", re.DOTALL)
REGISTRY = re.compile(r'^    "(?P<id>0x\w{4})": (?P<entry>GpuVendor\(.*\)),$', re.MULTILINE)

MACHINE = Machine(
    name="acme",
    description="one Acme GPU",
    nodes=(NumaNode("0-7", 16 << 30, (10,)),),
    bridges=(
        HostBridge(
            "pci0000:00",
            0,
            (
                Function(
                    "0000:00:04.0",
                    PciId(0xACCE, 0x0001, 0x030200),
                    driver="acme",
                    roles=(DrmNodes(0, 128),),
                    attributes={"anvils": 7, "busy_percent": 40},
                ),
            ),
        ),
    ),
    iommu=False,
)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules of the page, instead of files in the packages; yields their names."""
    page = PAGE.read_text()
    written = []
    for module in MODULE.finditer(page):
        file = tmp_path / "dra_agent" / module["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(module["source"])
        written.append("dra_agent." + module["path"].removesuffix(".py").replace("/", "."))
    for package in (dra_agent.inventory, dra_agent.cdi.edits, dra_agent.telemetry.sources):
        folder = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    importlib.invalidate_caches()
    line = REGISTRY.search(page)
    assert line is not None, "the page shows the line of the registry"
    monkeypatch.setitem(vendors.GPU_VENDORS, line["id"], eval(line["entry"], vars(vendors)))
    yield written
    for name in [name for name in sys.modules if name.endswith(".acme") or ".acme." in name]:
        del sys.modules[name]


def test_a_fictional_vendor_is_published_and_prepared(acme: list[str], tmp_path: Path) -> None:
    assert acme == ["dra_agent.inventory.acme.backend", "dra_agent.cdi.edits.acme", "dra_agent.telemetry.sources.acme"]
    host = build_machine(MACHINE, tmp_path / "host")
    inventory = collect(host, scan(host))
    assert not inventory.problems
    (gpu,) = inventory.devices
    assert gpu.vendor == "acme"
    (published,) = desired_slices(inventory, driver="gpu.example.com", node="node-a").slices
    (device,) = published["spec"]["devices"]
    assert device["attributes"]["anvils"] == {"int": 7}
    assert device["attributes"]["vendor"] == {"string": "acme"}
    edits = EditProviders(host, directories=[]).edits(gpu)
    assert [node.path for node in edits.own.device_nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert edits.notes == ("image: bring libacme",)
    source = SourceRegistry(host).source_of(gpu)
    assert source is not None
    assert source.read(gpu) == DeviceSample(gpu_utilization_ratio=0.4)


def test_a_vendor_without_modules_has_the_common_attributes(tmp_path: Path) -> None:
    host = build_machine(MACHINE, tmp_path)
    (gpu,) = collect(host, scan(host)).devices
    assert gpu.vendor == "0xacce"
    assert "anvils" not in gpu.attributes
    assert SourceRegistry(host).source_of(gpu) is None
