"""What doctor reports about NVIDIA's container toolkit on a host with its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.conftest import VERSIONS, Programs, Scanned
from dra_agent.doctor import CheckContext, CommandResult, Finding, Severity, run_checks

OUTPUT = "NVIDIA Container Toolkit CLI version {}\ncommit: 0123456789abcdef"


@pytest.fixture
def real_host(scanned: Scanned) -> CheckContext:
    context = scanned()
    context.simulated = False
    return context


def about_toolkit(context: CheckContext) -> Finding:
    (finding,) = [found for found in run_checks(context) if found.check == "NVIDIA toolkit"]
    return finding


def write_spec(directory: Path) -> None:
    device = {"name": "all", "containerEdits": {"env": ["A=b"]}}
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]}
    (directory / "nvidia.json").write_text(json.dumps(spec))


def test_a_host_without_the_toolkit_gets_a_warning(real_host: CheckContext) -> None:
    finding = about_toolkit(real_host)
    assert finding.severity is Severity.WARNING and "install nvidia-container-toolkit" in finding.hint


@pytest.mark.parametrize("version", ["1.17.8", "1.18.0-rc.3", "1.20.2", "2.0"])
def test_a_version_without_known_vulnerabilities_passes(real_host: CheckContext, version: str) -> None:
    real_host.commands = Programs(**VERSIONS, **{"nvidia-ctk": OUTPUT.format(version)})
    finding = about_toolkit(real_host)
    assert finding.severity is Severity.OK and finding.message.startswith(version.partition("-")[0])


@pytest.mark.parametrize("version", ["1.9.0", "1.17.7", "1.17"])
@pytest.mark.parametrize("published", [True, False])
def test_hooks_with_known_vulnerabilities_are_a_warning(real_host: CheckContext, version: str, published: bool) -> None:
    if published:
        write_spec(real_host.cdi_dir)
    real_host.commands = Programs(**VERSIONS, **{"nvidia-ctk": OUTPUT.format(version)})
    finding = about_toolkit(real_host)
    assert finding.severity is Severity.WARNING
    assert version in finding.message and "CVE-2025-23266" in finding.message and "1.17.8" in finding.hint


def test_a_tool_that_prints_no_version_is_a_warning(real_host: CheckContext) -> None:
    real_host.commands = Programs(**VERSIONS, **{"nvidia-ctk": CommandResult(None, "no response within 5 s")})
    finding = about_toolkit(real_host)
    assert finding.severity is Severity.WARNING and "no response within 5 s" in finding.message


def test_a_published_spec_is_enough_for_driver_libraries(real_host: CheckContext) -> None:
    write_spec(real_host.cdi_dir)
    finding = about_toolkit(real_host)
    assert finding.severity is Severity.OK and "version of the toolkit is not known" in finding.message
