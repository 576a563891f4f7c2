"""The machines that exist by name; each module describes one."""

from __future__ import annotations

from importlib import import_module

from dra_agent.errors import UsageError
from dra_simulate.machine import Machine

SUFFIX = "-untidy"
"""Names the untidy sibling of a profile (dra_simulate.untidy)."""
MODULES = {
    "dgx-h100": "dgx_h100",
    "hgx-h200": "hgx_h200",
    "dgx-spark": "dgx_spark",
    "gb200-nvl": "gb200_nvl",
    "dgx-2": "dgx_2",
    "azure-ndv5": "azure_ndv5",
    "aws-p4d": "aws_p4d",
    "a30": "a30",
    "a100-40gb": "a100_40gb",
    "h100-nvl": "h100_nvl",
    "h100-pcie": "h100_pcie",
    "gh200-144g": "gh200_144g",
    "b200": "b200",
    "rtx-pro-6000": "rtx_pro_6000",
    "mi300x": "mi300x",
    "mi300x-linux-6.18": "mi300x_linux_6_18",
    "mi300x-vf": "mi300x_vf",
    "mi300a": "mi300a",
    "mi308x": "mi308x",
    "mi350x": "mi350x",
    "mi355x": "mi355x",
    "mi250x": "mi250x",
    "mi210": "mi210",
    "strix-halo": "strix_halo",
    "flex170": "flex170",
    "arc-b60": "arc_b60",
    "arc-pro": "arc_pro",
    "l40s": "l40s",
    "connectx-3": "connectx_3",
    "trn1": "trn1",
    "trn2": "trn2",
    "gaudi3": "gaudi3",
    "alveo-v80": "alveo_v80",
    "mixed": "mixed",
    "vm-1gpu": "vm_1gpu",
    "cpu-only": "cpu_only",
}


def profiles() -> list[str]:
    """Names of all profiles, without their untidy siblings."""
    return list(MODULES)


def load_profile(name: str) -> Machine:
    """The machine of that name, or its untidy sibling; UsageError names the known ones, and the nearest."""
    ideal = name.removesuffix(SUFFIX)
    if ideal not in MODULES:
        import difflib

        known = list(MODULES) if ideal == name else [f"{one}{SUFFIX}" for one in MODULES]
        near = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"unknown profile {name!r}; known: {', '.join(MODULES)}, and each with {SUFFIX}",
            hint=f"did you mean {near[0]}?" if near else None,
        )
    machine: Machine = import_module(f"{__name__}.{MODULES[ideal]}").machine()
    if ideal == name:
        return machine
    from dra_simulate.untidy import untidy

    return untidy(machine)
