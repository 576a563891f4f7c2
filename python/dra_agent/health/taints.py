"""A device with its issues: its taints, and the health that other layers use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from dra_agent.clock import STEADY
from dra_agent.health import issues
from dra_agent.health.hysteresis import ActiveIssue
from dra_agent.health.issues import Severity
from dra_agent.health.settings import HealthSettings, TaintEffect
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import HOST_USE, STARTING, Device, Inventory

MAX_TAINTS = 16
"""That the API allows on one device."""


def apply_health(
    inventory: Inventory,
    settings: HealthSettings,
    driver: str,
    active_issues: Callable[[Device], Sequence[ActiveIssue]] | None = None,
) -> Inventory:
    """Return the inventory with taints. Without `active_issues`, only the issues that the inventory itself shows apply.

    `active_issues` are a device's, the most severe first.
    """
    known = active_issues or _shown
    devices = tuple(_with_taints(device, settings, driver, known(device)) for device in inventory.devices)
    return msgspec.structs.replace(inventory, devices=devices)


class UnhealthyDevices:
    """The devices of the last inventory with issues: one whose issues have not changed stays the same object."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Device, list[object], Device]] = {}
        """By name: as it was found, what its taints depend on, and with its issues."""

    def apply(
        self,
        inventory: Inventory,
        settings: HealthSettings,
        driver: str,
        active_issues: Callable[[str], Sequence[ActiveIssue]],
    ) -> Inventory:
        """Return the inventory with taints, as `apply_health` does."""
        before, self._known = self._known, {}
        offset = STEADY.offset
        devices = []
        for device in inventory.devices:
            found = active_issues(device.name)
            if found:
                causes: list[object] = [settings, offset]
                for active in found:
                    causes += (active.cause, active.began)
                known = before.get(device.name)
                if known is None or known[0] is not device or known[1] != causes:
                    known = device, causes, _with_taints(device, settings, driver, found)
                self._known[device.name] = known
                device = known[2]
            devices.append(device)
        return msgspec.structs.replace(inventory, devices=tuple(devices)) if self._known else inventory


def apply_recorded(
    inventory: Inventory, settings: HealthSettings, driver: str, noted: Sequence[ActiveIssue]
) -> Inventory:
    """Return the inventory as evaluated by an agent with these recorded issues; for commands."""

    def active_issues(device: Device) -> list[ActiveIssue]:
        known = {active.cause.name: active for active in noted if active.device == device.name}
        for active in _shown(device):
            known.setdefault(active.cause.name, active)
        return sorted(
            known.values(), key=lambda active: (-active.cause.severity, active.began or 0.0, active.cause.name)
        )

    return apply_health(inventory, settings, driver, active_issues)


def _shown(device: Device) -> list[ActiveIssue]:
    # A single observation cannot distinguish a start from a failure.
    shown = [cause for cause in issues.of_device(device) if not cause.transient]
    found = [ActiveIssue(device.name, cause, None, 0.0) for cause in shown]
    return sorted(found, key=lambda active: (-active.cause.severity, active.cause.name))


def _with_taints(device: Device, settings: HealthSettings, driver: str, active_issues: Sequence[ActiveIssue]) -> Device:
    if not active_issues:
        return device
    taints = [
        _taint(active, effect, driver) for active in active_issues if (effect := _effect(active, settings)) != "none"
    ]
    worst = active_issues[0].cause
    unhealthy = worst.severity > Severity.NOTICE
    return msgspec.structs.replace(
        device,
        taints=(*device.taints, *taints)[:MAX_TAINTS],
        health="unhealthy" if unhealthy else "unmonitored",
        health_reason="; ".join(dict.fromkeys(active.cause.message for active in active_issues)),
    )


def _effect(active: ActiveIssue, settings: HealthSettings) -> TaintEffect:
    by_severity: dict[Severity, TaintEffect] = {
        Severity.FATAL: settings.fatal,
        Severity.DEGRADED: settings.degraded,
        Severity.NOTICE: settings.unmonitored,
    }
    effect = by_severity[active.cause.severity]
    # The attributes of the first are incomplete, and so is the result of the rules. The claim of the second keeps its
    # device, and no other one gets it. Of the last, the scheduler would choose the same device again.
    if active.cause.name in (STARTING, HOST_USE) or (
        active.cause.name == issues.SETUP_FAILED and effect in ("tell", "none")
    ):
        effect = "NoSchedule"
    return "NoSchedule" if effect == "NoExecute" and not active.cause.confirmed else effect


def _taint(active: ActiveIssue, effect: TaintEffect, driver: str) -> Taint:
    assert effect != "none"
    since = None if active.began is None else STEADY.to_wall(datetime.fromtimestamp(int(active.began), UTC))
    return Taint(
        key=f"{driver}/{active.cause.name}",
        effect="None" if effect == "tell" else effect,
        time_added=None if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
