"""Runs every check; one that fails is itself a finding, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from dra_agent.doctor import (
    cdi,
    conflicts,
    device_nodes,
    devices,
    iommu,
    kernel,
    nvidia_toolkit,
    pcie_links,
    permissions,
    runtimes,
    sriov,
    standalone_store,
    state,
)
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, Severity, problem

Check = Callable[[CheckContext], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    "permissions": permissions.check,
    "hardware": devices.check,
    "device nodes": device_nodes.check,
    "links": pcie_links.check,
    "SR-IOV": sriov.check,
    "IOMMU": iommu.check,
    "CDI": cdi.check,
    "container runtimes": runtimes.check,
    "state": state.check,
    "store": standalone_store.check,
    "NVIDIA toolkit": nvidia_toolkit.check,
    "other drivers": conflicts.check,
    "kernel": kernel.check,
}


def run_checks(examination: CheckContext, checks: dict[str, Check] = CHECKS) -> list[Finding]:
    """Run the checks in their order."""
    return [finding for name, check in checks.items() for finding in _run(name, check, examination)]


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is a problem; warnings are not."""
    return all(finding.severity is not Severity.PROBLEM for finding in findings)


def _run(name: str, check: Check, examination: CheckContext) -> Iterator[Finding]:
    try:
        for finding in check(examination):
            yield msgspec.structs.replace(finding, check=name)
    except Exception as error:  # noqa: BLE001 - a check that trips over a strange host must not hide the others
        failed = problem(f"the check failed: {type(error).__name__}: {error}", name, "please report it")
        yield msgspec.structs.replace(failed, check=name)
