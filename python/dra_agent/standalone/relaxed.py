"""The relaxed form of a spec: without what only narrows the choice of devices.

If a claim with the relaxed spec does not fit, neither does one with the spec itself. Thousands of specs that differ in
selectors or configuration have one relaxed form, so one query may answer for all of them.
"""

from __future__ import annotations

from typing import Any

_NARROWING = ("constraints", "config")
"""Of `spec.devices`. Configuration belongs to drivers and has no effect on the choice; it only makes specs differ."""


def relaxed(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the relaxed form of the spec of a claim.

    It keeps all that can make a claim fit which does not fit without it: tolerations, admin access, and the amounts of
    capacity that replace defaults. Requests have names by their places, so results for the form name no request.
    """
    devices = spec.get("devices") or {}
    requests = [_relaxed_request(request, f"r{place}") for place, request in enumerate(devices.get("requests") or ())]
    return {**spec, "devices": {**_without(devices, _NARROWING), "requests": requests}}


def _relaxed_request(request: dict[str, Any], name: str) -> dict[str, Any]:
    form = {**request, "name": name}
    if exactly := request.get("exactly"):
        form["exactly"] = _relaxed_choice(exactly)
    if alternatives := request.get("firstAvailable"):
        form["firstAvailable"] = [
            {**_relaxed_choice(one), "name": f"a{place}"} for place, one in enumerate(alternatives)
        ]
    return form


def _relaxed_choice(choice: dict[str, Any]) -> dict[str, Any]:
    # A request for all devices needs more of them without its selectors.
    return choice if choice.get("allocationMode") == "All" else _without(choice, ("selectors",))


def _without(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name not in names}
