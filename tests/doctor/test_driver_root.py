"""The doctor reports which driver root is used and why, and a driver container that the agent does not use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.doctor import CheckContext, Severity
from dra_agent.doctor import nvidia_driver as check
from dra_agent.doctor.devices import check_devices
from dra_agent.driver_root import DriverRoot
from dra_agent.inventory.collector import collect
from dra_agent.topology import scan
from dra_simulate import driver_container


@pytest.fixture
def root(tmp_path: Path) -> Path:
    dra_simulate.build("vm-1gpu", tmp_path / "host")
    driver_container.remove(tmp_path / "host")
    return tmp_path / "host"


def examined(root: Path, *, required: bool | None) -> CheckContext:
    host = dra_simulate.build("vm-1gpu", root)
    mount = root / "run/nvidia/driver"
    if required is not None:
        host = replace(host, driver_root=DriverRoot(mount, mount, required))
    topology = scan(host)
    return CheckContext(host=host, topology=topology, inventory=collect(host, topology), simulated=True)


@pytest.mark.parametrize(("required", "reason"), [(True, "names it"), (False, "is auto, and a driver is there")])
def test_the_root_and_the_reason_are_reported(root: Path, required: bool, reason: str) -> None:
    driver_container.install(root)
    (finding,) = check.check_nvidia_driver(examined(root, required=required))
    assert finding.severity is Severity.OK
    assert f"taken from {root}/run/nvidia/driver (nvidia_driver_root {reason})" in finding.message
    assert "libnvidia-ml.so." in finding.message and "device nodes in the host's /dev" in finding.message


def test_a_missing_driver_is_reported_once(root: Path) -> None:
    examination = examined(root, required=True)
    assert list(check.check_nvidia_driver(examination)) == []
    found = [one for one in check_devices(examination) if "driver is missing" in one.message]
    assert len(found) == 1 and found[0].severity is Severity.PROBLEM
    assert f'nvidia_driver_root = "{root}/run/nvidia/driver"' in found[0].hint


def test_auto_without_a_driver_container_uses_the_host(root: Path) -> None:
    (finding,) = check.check_nvidia_driver(examined(root, required=False))
    assert finding.severity is Severity.OK and "the host's own files are used: no driver at" in finding.message


def test_a_driver_container_that_is_not_used_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver_container.install(root)
    monkeypatch.setattr(check, "OPERATOR_ROOT", root / "run/nvidia/driver")
    examination = replace(examined(root, required=None), simulated=False)
    (finding,) = check.check_nvidia_driver(examination)
    assert finding.severity is Severity.WARNING
    assert f'set nvidia_driver_root = "{root}/run/nvidia/driver", or "auto"' in finding.hint
