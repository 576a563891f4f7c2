"""Runs every check; one that fails is itself a finding, and the others run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from dra_agent import revision
from dra_agent.doctor.api_server import check_kubeconfig
from dra_agent.doctor.cdi import check_cdi
from dra_agent.doctor.conflicts import check_conflicts
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.device_links import check_device_links
from dra_agent.doctor.devices import check_device_nodes, check_devices, check_permissions
from dra_agent.doctor.endpoint import check_endpoint
from dra_agent.doctor.finding import Finding, Severity, ok, problem
from dra_agent.doctor.kernel import check_kernel
from dra_agent.doctor.nics import check_nics
from dra_agent.doctor.nvidia_driver import check_nvidia_driver
from dra_agent.doctor.nvidia_toolkit import check_nvidia_toolkit
from dra_agent.doctor.pci import check_iommu, check_pcie_links, check_sriov
from dra_agent.doctor.running_agent import check_configuration, check_reclaim, check_telemetry
from dra_agent.doctor.runtimes import check_runtimes
from dra_agent.doctor.state import check_standalone_store, check_state_directory


def check_agent(context: CheckContext) -> Iterator[Finding]:
    """Name the version and revision that runs these checks."""
    del context
    yield ok(f"dra-agent {revision.describe()}")


Check = Callable[[CheckContext], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    "agent": check_agent,
    "configuration": check_configuration,
    "kubeconfig": check_kubeconfig,
    "permissions": check_permissions,
    "hardware": check_devices,
    "NICs": check_nics,
    "NVIDIA driver": check_nvidia_driver,
    "device nodes": check_device_nodes,
    "device links": check_device_links,
    "links": check_pcie_links,
    "SR-IOV": check_sriov,
    "IOMMU": check_iommu,
    "CDI": check_cdi,
    "container runtimes": check_runtimes,
    "state": check_state_directory,
    "store": check_standalone_store,
    "NVIDIA toolkit": check_nvidia_toolkit,
    "other drivers": check_conflicts,
    "reclaim": check_reclaim,
    "telemetry": check_telemetry,
    "metrics": check_endpoint,
    "kernel": check_kernel,
}


def run_checks(context: CheckContext, checks: dict[str, Check] = CHECKS) -> list[Finding]:
    """Run the checks in their order."""
    return [finding for name, check in checks.items() for finding in _run(name, check, context)]


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is a problem; warnings are not."""
    return all(finding.severity is not Severity.PROBLEM for finding in findings)


def _run(name: str, check: Check, context: CheckContext) -> Iterator[Finding]:
    try:
        for finding in check(context):
            yield msgspec.structs.replace(finding, check=name)
    except Exception as error:  # noqa: BLE001 - a check that fails on an unusual host must not hide the others
        failed = problem(f"the check failed: {type(error).__name__}: {error}", name, "please report it")
        yield msgspec.structs.replace(failed, check=name)
