"""Configuration that claims and classes carry for this driver: decoded strictly, with the field that is wrong.

Which kinds there are is said by the vendor set-ups that the agent was started with; none of them is known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.prepare.setup import DeviceSetup, Kind

_PATH = re.compile(r" - at `\$(.*)`$")
_NAMED = re.compile(r"(?:Object contains unknown|Object missing required) field `(.*?)`")


class ConfigurationError(PermanentError):
    """Configuration that is not understood, and where: `field` is the path of what is wrong."""

    def __init__(self, field: str, reason: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.field = field.lstrip(".")
        self.reason = reason
        super().__init__(f"{self.field}: {reason}" if self.field else reason, where=where, hint=hint)


def decode(
    parameters: Any, setups: Mapping[Kind, DeviceSetup], *, field: str, where: str | None = None
) -> tuple[DeviceSetup, msgspec.Struct]:
    """Find the set-up that opaque parameters ask for, and its parameters; ConfigurationError names the field.

    `field` is the path of the parameters themselves, empty where they stand alone, `where` the object that has them.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(field, "is not an object", where=where, hint="give apiVersion, kind and the settings")
    settings = dict(parameters)
    kind = (settings.pop("apiVersion", None), settings.pop("kind", None))
    for name, value in zip(("apiVersion", "kind"), kind, strict=True):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{field}.{name}", "is missing or no text", where=where, hint="say which kind of set-up"
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
        path, reason = _wrong(error)
        raise ConfigurationError(f"{field}{path}", reason, where=where, hint="correct the settings") from error


def _wrong(error: msgspec.ValidationError) -> tuple[str, str]:
    """Take apart what a strict decoder says: the path of the field (".limits.memory"), and what is wrong with it."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    text = _PATH.sub("", text)
    if named := _NAMED.match(text):
        path = f"{path}.{named[1]}"
        text = "no such field" if "unknown" in named[0] else "is missing"
    return path, f"{text[:1].lower()}{text[1:]}"


def without_kind(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Give the settings alone, as a set-up's Struct has them."""
    return {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}
