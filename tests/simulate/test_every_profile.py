"""Every profile through the agent: slices, allocation, prepare and release, doctor, topology; in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.question import allocate
from dra_agent import _native
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.registry import load_file
from dra_agent.cli.main import main
from dra_agent.doctor import CheckContext, CommandResult, CommandRunner, Finding, run_checks
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import FAMILIES, Device, Family, Inventory
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.slices import desired_slices
from dra_agent.topology import Topology, scan
from dra_simulate import profiles

DRIVER, NODE = "dra-agent.internal", "node-a"


class NoCommands(CommandRunner):
    """A host without container runtimes and vendors' tools."""

    def find(self, name: str) -> str | None:
        return None

    def run(self, argv: Any) -> CommandResult:
        raise AssertionError(f"no command {argv} exists")


@pytest.mark.parametrize("profile", profiles())
def test_a_profile_works_in_the_whole_agent(
    profile: str, standing: Callable[[str], Host], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = standing(profile)
    topology = scan(host, distances=True)
    inventory = collect(host, topology)
    assert (topology.problems, inventory.problems) == ((), ())
    slices = valid_slices(inventory)
    for family in FAMILIES:
        if inventory.family(family):
            prepare_and_release(host, inventory, family, slices, tmp_path / family)
    assert failed_checks(host, topology, inventory, tmp_path) == []
    assert main(["topology", f"--sysfs-root={host.sysfs}", f"--dev-root={host.dev}", "-o", "json"]) == 0
    document = capsys.readouterr().out
    json.loads(document)
    assert [device.name for device in inventory.devices if f'"{device.pci_address}"' not in document] == []
    assert main(["topology", f"--sysfs-root={host.sysfs}", f"--dev-root={host.dev}"]) == 0
    assert "NUMA node" in capsys.readouterr().out


def valid_slices(inventory: Inventory) -> list[dict[str, Any]]:
    """The slices of all pools, which the API accepts and which hold every device."""
    desired = desired_slices(inventory, node=NODE, driver=DRIVER, naming="fixed")
    assert desired.problems == []
    slices = list(desired.slices)
    assert [json.loads(_native.validate_object(json.dumps(one).encode())) for one in slices] == [[]] * len(slices)
    published = [device["name"] for one in slices for device in one["spec"].get("devices", [])]
    assert sorted(published) == sorted(device.name for device in inventory.devices)
    return slices


def prepare_and_release(
    host: Host, inventory: Inventory, family: Family, slices: list[dict[str, Any]], folder: Path
) -> None:
    """A claim for one device of each type of a family is allocated, gets its nodes, and leaves nothing behind."""
    kinds = dict.fromkeys(device.attributes["type"].value for device in inventory.family(family))
    ids = EditProviders(host, directories=[folder / "cdi"])
    specs = SpecDirectory(folder / "cdi", DRIVER)
    with JournalLedger(folder / "state", "boot") as ledger:
        preparer = Preparer(DRIVER, ledger, specs, inventory.lookup, node=NODE, host=host, edit_providers=ids)
        for kind in kinds:
            claim = allocated_claim(str(kind), slices)
            (prepared,) = preparer.prepare(claim)
            device = inventory.lookup(prepared.pool, prepared.device)
            assert device is not None and device.family == family
            assert nodes_of(specs.file(str(kind))) >= needed(device)
            preparer.unprepare(str(kind))
            assert not specs.file(str(kind)).exists()
            assert ledger.entries() == []


def allocated_claim(kind: str, slices: list[dict[str, Any]]) -> dict[str, Any]:
    """A claim for one device of this type, as the scheduler allocates it."""
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    head = {"apiVersion": "resource.k8s.io/v1"}
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    device_class = {**head, "kind": "DeviceClass", "metadata": {"name": kind}, "spec": spec}
    request = {"name": "one", "exactly": {"deviceClassName": kind}}
    claim: dict[str, Any] = {
        **head,
        "kind": "ResourceClaim",
        "metadata": {"name": kind, "namespace": "default", "uid": kind},
        "spec": {"devices": {"requests": [request]}},
    }
    found = allocate(node=NODE, classes=[device_class], slices=slices, claims=[claim])
    assert found["allocated"], found["error"]
    return claim | {"status": {"allocation": found["results"][0]}}


def needed(device: Device) -> set[str]:
    """The nodes of a device that a container must get: those that are its own."""
    return {node.path for node in device.nodes}


def nodes_of(spec: Path) -> set[str]:
    """The paths in the container that a claim's spec brings; files take the place of nodes without permission."""
    loaded = load_file(spec).spec
    assert loaded is not None
    edits = [loaded.container_edits, *(device.container_edits for device in loaded.devices)]
    nodes = {node.path for edit in edits for node in edit.device_nodes}
    return nodes | {mount.container_path for edit in edits for mount in edit.mounts}


def failed_checks(host: Host, topology: Topology, inventory: Inventory, folder: Path) -> list[Finding]:
    """Checks of `doctor` that end with an exception."""
    context = CheckContext(
        host=host,
        topology=topology,
        inventory=inventory,
        cdi_dir=folder / "cdi",
        runtime_dirs=(folder / "cdi",),
        state_dir=folder / "state",
        containerd_config=folder / "containerd.toml",
        docker_config=folder / "daemon.json",
        commands=NoCommands(),
        user=0,
        simulated=True,
    )
    findings = run_checks(context)
    assert findings
    return [finding for finding in findings if "the check failed" in str(finding)]
