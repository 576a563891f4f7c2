"""Configuration for this driver in claims and classes: strict decoding, validation before allocation, JSON schema.

The kinds are defined by the vendor set-ups of the agent; none is known here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.prepare.setup import DeviceSetup, Kind

_PATH = re.compile(r" - at `\$(.*)`$")
_NAMED = re.compile(r"(?:Object contains unknown|Object missing required) field `(.*?)`")


class ConfigurationError(PermanentError):
    """Invalid configuration; `field` is the path of the invalid field."""

    def __init__(self, field: str, reason: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.field = field.lstrip(".")
        self.reason = reason
        super().__init__(f"{self.field}: {reason}" if self.field else reason, where=where, hint=hint)


def decode(
    parameters: Any, setups: Mapping[Kind, DeviceSetup], *, field: str, where: str | None = None
) -> tuple[DeviceSetup, msgspec.Struct]:
    """Return the set-up for opaque parameters, and the decoded parameters. Raises ConfigurationError with the field.

    `field` is the path of the parameters, empty if they are the whole document; `where` names the object.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(field, "is not an object", where=where, hint="give apiVersion, kind and the settings")
    settings = dict(parameters)
    kind = (settings.pop("apiVersion", None), settings.pop("kind", None))
    for name, value in zip(("apiVersion", "kind"), kind, strict=True):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{field}.{name}", "is missing or no text", where=where, hint="set the kind of configuration"
            )
    setup = setups.get(kind)
    if setup is None:
        known = ", ".join(sorted(f"{name} of {version}" for version, name in setups)) or "none"
        raise ConfigurationError(
            f"{field}.kind",
            f"{kind[1]!r} of {kind[0]!r} is not known to this agent",
            where=where,
            hint=f"remove it from the claim or its class; known kinds: {known}",
        )
    try:
        return setup, msgspec.convert(settings, setup.parameters)
    except msgspec.ValidationError as error:
        path, reason = _path_and_reason(error)
        raise ConfigurationError(f"{field}{path}", reason, where=where, hint="correct the settings") from error


def _path_and_reason(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split the message of a strict decoder into the path of the field (".limits.memory") and the error."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    text = _PATH.sub("", text)
    if named := _NAMED.match(text):
        path = f"{path}.{named[1]}"
        text = "no such field" if "unknown" in named[0] else "is missing"
    return path, f"{text[:1].lower()}{text[1:]}"


def without_kind(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without apiVersion and kind, as in the set-up's Struct."""
    return {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}


GROUP = "resource.k8s.io"
MAX_CONFIGS = 32
"""Entries of one object; the API server refuses an object with more (DeviceConfigMaxSize of resource.k8s.io)."""
CONFIG_PATHS = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}
"""Where objects have configuration; the same in every version of the API."""


def validate_object(
    value: Mapping[str, Any], driver: str, setups: Mapping[Kind, DeviceSetup]
) -> tuple[int, list[ConfigurationError]]:
    """Count the driver's configurations in an object, and return their errors.

    Other objects, and configuration for other drivers, are ignored. An object of the API group of one of the
    set-ups is configuration itself.
    """
    errors: list[ConfigurationError] = []
    count = 0
    for field, parameters in _parameters(value, driver, setups):
        count += 1
        try:
            decode(parameters, setups, field=field)
        except ConfigurationError as error:
            errors.append(error)
    return count, errors


def _parameters(value: Mapping[str, Any], driver: str, setups: Mapping[Kind, DeviceSetup]) -> Iterator[tuple[str, Any]]:
    version = value.get("apiVersion")
    group = version.partition("/")[0] if isinstance(version, str) else ""
    if group in {known.partition("/")[0] for known, _ in setups}:
        yield "", value
    if group != GROUP:
        return
    path = CONFIG_PATHS.get(str(value.get("kind")))
    found: Any = value
    for step in path.split(".") if path is not None else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    if path is None or not isinstance(found, list):
        return
    for index, entry in enumerate(found[:MAX_CONFIGS]):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if isinstance(opaque, Mapping) and opaque.get("driver") == driver:
            yield f"{path}[{index}].opaque.parameters", opaque.get("parameters")


DIALECT = "https://json-schema.org/draft/2020-12/schema"
RULES = "x-kubernetes-validations"
"""Rules in CEL, as in the schema of a CustomResourceDefinition: for checks that JSON schema cannot express."""


def schema(setups: Iterable[DeviceSetup]) -> dict[str, Any]:
    """Return the JSON schema of the parameters of all set-ups; deterministic."""
    ordered = sorted(setups, key=lambda setup: (setup.kind[0], setup.kind[1]))
    shapes, parts = msgspec.json.schema_components(
        [setup.parameters for setup in ordered], ref_template="#/$defs/{name}"
    )
    for setup, shape in zip(ordered, shapes, strict=True):
        part = parts[shape["$ref"].rpartition("/")[2]]
        version, kind = setup.kind
        named = {"apiVersion": {"const": version}, "kind": {"const": kind}}
        part["properties"] = {**named, **part["properties"]}
        part["required"] = [*named, *part.get("required", [])]
    for part in parts.values():
        # A docstring, whose lines keep their indentation before Python 3.13.
        part["description"] = inspect.cleandoc(part["description"])
    return {
        "$schema": DIALECT,
        "title": "Configuration of devices in claims and classes",
        "oneOf": shapes,
        "$defs": parts,
    }
