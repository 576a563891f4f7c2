"""The recovery that the driver requests for a GPU: nvmlDeviceGpuRecoveryAction_t, since driver 565.

NVIDIA's DRA driver rates XIDs by it (kubernetes-sigs/dra-driver-nvidia-gpu#1441).
"""

from __future__ import annotations

from dra_agent.diagnostic import Diagnostic

ACTIONS = {
    1: "reset",
    2: "recovered by a reboot of the node",
    3: "drained of peer-to-peer traffic",
    4: "drained of peer-to-peer traffic and reset",
    6: "reset through its bus",
    7: "recovered by a restart of the whole system",
}
"""1 to 4 in nvml.h of CUDA 12.8; 6 and 7 since driver 615 (change log of NVML)."""
_IMEX_OR_BUS = 5
_IMEX_SINCE_BRANCH = 595
"""5 is RECOVER_IMEX_DOMAIN since driver 595 (change log of NVML). An older nvidia-ml-py names it GPU_RESET_BUS."""


def evaluate_recovery(action: int | None, driver: str | None, name: str) -> tuple[str, Diagnostic | None]:
    """Return the reason for which the GPU cannot be used ("" for none), and the text to report.

    `driver` is its version ("615.71.05"), `name` the device's.
    """
    if not action:
        return "", None
    if action == _IMEX_OR_BUS:
        if branch_of(driver) >= _IMEX_SINCE_BRANCH:
            # It is about jobs of several nodes: the GPU itself works, as NVIDIA's DRA driver judges too.
            message = "the driver requests a recovery of its IMEX domain: jobs of several nodes fail on it"
            return "", Diagnostic(name, message, "check nvidia-imex on the nodes of the domain", severity="warning")
        return f"the driver requests that it is {ACTIONS[6]}", None
    if action in ACTIONS:
        return f"the driver requests that it is {ACTIONS[action]}", None
    message = f"the driver requests recovery action {action}, which this version of the agent does not know"
    return message, Diagnostic(name, message, "see NVIDIA's documentation of the driver; update the agent")


def branch_of(driver: str | None) -> int:
    """Return the branch of a driver's version: 615 of "615.71.05"; 0 if it is not known."""
    text = (driver or "").partition(".")[0]
    return int(text) if text.isdecimal() else 0
