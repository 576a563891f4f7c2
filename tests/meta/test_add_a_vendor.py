"""Adding a vendor takes exactly the steps of docs/contributing/add-a-vendor.md."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.agent.config import Config
from dra_agent.agent.setup_registry import vendor_edits, vendor_setups
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits.registry import EditProviders
from dra_agent.cdi.registry import load_registry
from dra_agent.deadline import Deadline
from dra_agent.doctor.record import record
from dra_agent.doctor.vendor_driver import driver_of
from dra_agent.host import Host
from dra_agent.inventory import vendors
from dra_agent.inventory.collector import collect
from dra_agent.prepare import JournalLedger, Preparer
from dra_agent.prepare.setup import API_VERSION
from dra_agent.slices import desired_slices
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sources.registry import SourceRegistry
from dra_agent.topology import scan
from dra_simulate.builder import build_machine
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, PciId
from dra_simulate.roles.drm import DrmNodes

PAGE = Path(__file__).parents[2] / "docs/contributing/add-a-vendor.md"
MODULE = re.compile(r"```python\n# python/(?P<path>\S+)\n(?P<source>.*?)```", re.DOTALL)
REGISTRY = re.compile(r'^    "(?P<id>0x\w{4})": (?P<entry>GpuVendor\(.*\)),$', re.MULTILINE)
PROFILE = re.compile(r'^    "(?P<name>[\w-]+)": "(?P<module>\w+)",$', re.MULTILINE)
PACKAGES = [
    importlib.import_module(f"dra_agent.{name}")
    for name in (
        "inventory",
        "cdi.edits",
        "telemetry.sources",
        "device_setup",
        "doctor.vendors",
        "doctor.record.vendors",
    )
]
PROFILES = importlib.import_module("dra_simulate.profiles")
PACKAGES.append(PROFILES)
DRIVER = "gpu.example.com"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules of the page, instead of files in the packages; yields their names."""
    page = PAGE.read_text()
    written = []
    for module in MODULE.finditer(page):
        file = tmp_path / module["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(module["source"])
        written.append(module["path"].removesuffix(".py").replace("/", "."))
    for package in PACKAGES:
        folder = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    importlib.invalidate_caches()
    line, profile = REGISTRY.search(page), PROFILE.search(page)
    assert line is not None and profile is not None, "the page shows the lines of the registry and of the profile"
    monkeypatch.setitem(vendors.GPU_VENDORS, line["id"], eval(line["entry"], vars(vendors)))
    monkeypatch.setitem(PROFILES.MODULES, profile["name"], profile["module"])
    yield written
    for name in [name for name in sys.modules if ".acme" in name]:
        del sys.modules[name]


@pytest.fixture
def host(acme: list[str], tmp_path: Path) -> Host:
    return dra_simulate.build("acme-1gpu", tmp_path / "host")


def test_each_step_has_one_module(acme: list[str]) -> None:
    assert acme == [
        "dra_agent.inventory.acme.backend",
        "dra_agent.cdi.edits.acme",
        "dra_agent.telemetry.sources.acme",
        "dra_agent.device_setup.acme",
        "dra_simulate.profiles.acme_1gpu",
        "dra_agent.doctor.vendors.acme",
        "dra_agent.doctor.record.vendors.acme",
    ]


def test_a_fictional_vendor_is_published_and_sampled(host: Host) -> None:
    inventory = collect(host, scan(host))
    assert not inventory.problems
    (gpu,) = inventory.devices
    assert gpu.vendor == "acme"
    (published,) = desired_slices(inventory, driver=DRIVER, node="node-a").slices
    (device,) = published["spec"]["devices"]
    assert device["attributes"]["anvils"] == {"int": 7}
    assert device["attributes"]["vendor"] == {"string": "acme"}
    edits = EditProviders(host, directories=[]).edits(gpu)
    assert [node.path for node in edits.own.device_nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert edits.notes == ("image: bring libacme",)
    source = SourceRegistry(host).source_of(gpu)
    assert source is not None
    assert source.read(gpu) == DeviceSample(gpu_utilization_ratio=0.4)


def test_a_claim_is_prepared_with_its_set_up_and_released(host: Host, tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path / "state", cdi_dir=tmp_path / "cdi")
    inventory = collect(host, scan(host))
    (gpu,) = inventory.devices
    ledger = JournalLedger(config.state_dir, "boot")
    preparer = Preparer(
        DRIVER,
        ledger,
        SpecDirectory(config.cdi_dir, DRIVER),
        inventory.lookup,
        node="node-a",
        host=host,
        edit_providers=vendor_edits(host),
        setups=vendor_setups(config, host),
    )
    parameters = {"apiVersion": API_VERSION, "kind": "AnvilConfig", "hammers": 3}
    opaque = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": gpu.name}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "default", "uid": "uid-1", "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": [result], "config": [opaque]}}},
    }
    reserved = config.state_dir / "acme/uid-1.json"
    (device,) = preparer.prepare(claim, Deadline.of(60))
    edits = [load_registry([config.cdi_dir]).devices[name].device.container_edits for name in device.cdi_device_ids]
    assert "ACME_HAMMERS=3" in [line for edit in edits for line in edit.env]
    assert reserved.exists()
    preparer.unprepare("uid-1", Deadline.of(60))
    assert not reserved.exists() and not ledger.entries()
    ledger.close()


def test_the_doctor_knows_the_driver_and_records_the_attributes(host: Host, tmp_path: Path) -> None:
    assert driver_of("acme").node_hint("card") == "load the acme module (`modprobe acme`)"
    recorded = record(host, tmp_path / "recording")
    assert recorded.files
    tree = (tmp_path / "recording/tree.jsonl").read_text()
    assert "/anvils" in tree and "/busy_percent" in tree
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    (gpu,) = collect(again, scan(again)).devices
    assert gpu.attributes["anvils"] == collect(host, scan(host)).devices[0].attributes["anvils"]


def test_a_vendor_without_modules_has_the_common_attributes(tmp_path: Path) -> None:
    gpu = Function(
        "0000:00:04.0",
        PciId(0xACCE, 0x0001, 0x030200),
        driver="acme",
        attributes={"anvils": 7},
        roles=(DrmNodes(0, 128),),
    )
    machine = Machine(
        name="acme",
        description="one Acme GPU",
        nodes=(NumaNode("0-7", 16 << 30, (10,)),),
        bridges=(HostBridge("pci0000:00", 0, (gpu,)),),
        iommu=False,
    )
    host = build_machine(machine, tmp_path)
    (device,) = collect(host, scan(host)).devices
    assert device.vendor == "0xacce"
    assert "anvils" not in device.attributes
    assert SourceRegistry(host).source_of(device) is None
