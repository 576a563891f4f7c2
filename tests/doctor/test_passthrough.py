"""The findings of doctor about devices for vfio-pci."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from device_setup.vfio.bench import ALVEO, ALVEO_MANAGEMENT, FPGA, machine
from dra_agent.doctor import CheckContext, Finding, Severity
from dra_agent.doctor.pci import check_iommu
from dra_agent.inventory.collector import collect
from dra_agent.inventory.passthrough import VfioBinding, VfioBindingStore
from dra_agent.inventory.settings import InventorySettings, PassthroughRule
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.machine import Machine

OFFERED = InventorySettings(passthrough=(PassthroughRule('device.attributes["dra-agent.internal"].type == "fpga"'),))


def examination(folder: Path, described: Machine) -> CheckContext:
    host = build_machine(described, folder / "host")
    topology = scan(host)
    inventory = collect(host, topology, OFFERED)
    return CheckContext(host=host, topology=topology, inventory=inventory, state_dir=folder / "state")


def passthrough_findings(found: CheckContext) -> list[Finding]:
    return [finding for finding in check_iommu(found) if finding.severity is not Severity.OK]


def test_neighbours_in_a_group_are_named_before_a_claim_meets_them(tmp_path: Path) -> None:
    (finding,) = passthrough_findings(examination(tmp_path, machine()))
    assert finding.where == ALVEO
    assert ALVEO_MANAGEMENT in finding.message


def test_a_missing_driver_is_a_problem(tmp_path: Path) -> None:
    findings = passthrough_findings(examination(tmp_path, replace(machine(), vfio=False)))
    assert any("vfio-pci is not loaded" in one.message and "modprobe" in one.hint for one in findings)


def test_a_function_that_was_left_with_vfio_is_named(tmp_path: Path) -> None:
    found = examination(tmp_path, machine())
    assert found.inventory is not None
    device = next(one for one in found.inventory.devices if one.pci_address == FPGA)
    VfioBindingStore(tmp_path / "state").write(VfioBinding(FPGA, "gone", device.name, "dfl-pci", None, device))
    finding = next(one for one in passthrough_findings(found) if one.where == FPGA)
    assert finding.severity is Severity.PROBLEM
    assert "claim gone" in finding.message and "dfl-pci" in finding.hint
