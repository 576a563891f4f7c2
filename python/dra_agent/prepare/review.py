"""Looking at configuration before anything is allocated: in claims, templates and classes, or as it stands alone.

What only a device can tell (whether it is for such a device, whether there is room) is looked at when it is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dra_agent.prepare.config import ConfigurationError, decode
from dra_agent.prepare.setup import DeviceSetup, Kind

GROUP = "resource.k8s.io"
MAX_CONFIGS = 32
"""Entries of one object; the API server refuses an object with more (DeviceConfigMaxSize of resource.k8s.io)."""
_CONFIG = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}
"""Where objects have configuration; the same in every version of the API."""


def validate_object(
    value: Mapping[str, Any], driver: str, setups: Mapping[Kind, DeviceSetup]
) -> tuple[int, list[ConfigurationError]]:
    """Count what an object holds of configuration for a driver, and say what is wrong with each piece of it.

    Other objects, and configuration for other drivers, are not looked at. An object of the API group of one of the
    set-ups is configuration itself.
    """
    wrong: list[ConfigurationError] = []
    count = 0
    for field, parameters in _parameters(value, driver, setups):
        count += 1
        try:
            decode(parameters, setups, field=field)
        except ConfigurationError as error:
            wrong.append(error)
    return count, wrong


def _parameters(value: Mapping[str, Any], driver: str, setups: Mapping[Kind, DeviceSetup]) -> Iterator[tuple[str, Any]]:
    version = value.get("apiVersion")
    group = version.partition("/")[0] if isinstance(version, str) else ""
    if group in {known.partition("/")[0] for known, _ in setups}:
        yield "", value
    if group != GROUP:
        return
    path = _CONFIG.get(str(value.get("kind")))
    found: Any = value
    for step in path.split(".") if path is not None else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    if path is None or not isinstance(found, list):
        return
    for index, entry in enumerate(found[:MAX_CONFIGS]):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if isinstance(opaque, Mapping) and opaque.get("driver") == driver:
            yield f"{path}[{index}].opaque.parameters", opaque.get("parameters")
