"""Reads the series of telemetry in the text of an agent's /metrics, which is decoded strictly: it may be any text.

The format is the text format of Prometheus, as the agent writes it: without timestamps and exemplars. Series of other
names are ignored, so an agent of another version can have more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dra_agent.telemetry.control import ClaimValues, DeviceValues
from dra_agent.telemetry.model import COUNTERS, GAUGES, THROTTLE_REASONS, DeviceSample
from dra_agent.telemetry.plausibility import drop_impossible

MAX_ROWS = 4096
"""Devices, and claims on devices, of one agent. A node has a few hundred."""
MAX_LABEL_CHARS = 512
"""Characters of a label's value; names in Kubernetes have 253 at most."""
_NAME = re.compile(r"dra_agent_(?P<what>device|claim)_(?P<name>[a-z0-9_]+)")
_SAMPLED = "# TYPE dra_agent_telemetry_failing_devices "
"""A line that exists if telemetry is on, with or without values."""
_OMITTED = re.compile(r"dra_agent_telemetry_omitted_claims ([0-9]{1,9})\.0")
_NAMES_CLAIMS = "# TYPE dra_agent_claim_idle_seconds"
"""A line that exists if the endpoint shows names of claims."""
_LABEL = r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"'
_LABELS = re.compile(rf"{_LABEL}(?:,{_LABEL})*,?")
_EACH_LABEL = re.compile(_LABEL)
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|NaN|[-+]Inf")
_ESCAPED = re.compile(r"\\(.)")
_FIELDS = {**{name: name for name in GAUGES}, **{f"{name}_total": name for name in COUNTERS}}
"""Fields of a sample by the last part of a metric's name."""
_IDLE, _THROTTLED = "idle_seconds_total", "throttled"
_READ = {"device": {*_FIELDS, _THROTTLED}, "claim": {*_FIELDS, _THROTTLED, _IDLE}}
"""The metrics that are read."""


class ExposedValues(msgspec.Struct, frozen=True):
    """The telemetry of one agent."""

    is_on: bool
    """Whether the agent samples at all."""
    names_claims: bool
    """Whether the endpoint has series of claims."""
    devices: tuple[DeviceValues, ...] = ()
    """Those with any value; `claims` is empty."""
    claims: tuple[ClaimValues, ...] = ()
    problems: tuple[str, ...] = ()
    """Values that cannot be true, which are left out, and how many claims the agent left out."""


def parse(text: str) -> ExposedValues:
    """Return the values; raises ValueError with the reason if the text is not what an agent writes."""
    devices: dict[tuple[str, str], dict[str, Any]] = {}
    products: dict[tuple[str, str], tuple[str, str]] = {}
    claims: dict[tuple[str, str, str], dict[str, Any]] = {}
    is_on = names_claims = False
    problems: list[str] = []
    for line in text.split("\n"):
        is_on = is_on or line.startswith(_SAMPLED)
        names_claims = names_claims or line.startswith(_NAMES_CLAIMS)
        if (omitted := _OMITTED.fullmatch(line)) is not None and int(omitted[1]):
            problems.append(f"{int(omitted[1]):,} claims on devices have no values: there are too many")
        found = _NAME.match(line)
        if found is None or found["name"] not in _READ[found["what"]]:
            continue
        name, is_claim = found["name"], found["what"] == "claim"
        labels, value = _series(line)
        if is_claim:
            namespace, claim, device = _labels(labels, "namespace", "claim", "device")
            values = claims.setdefault((namespace, claim, device), {})
        else:
            pool, device, family, product = _labels(labels, "pool", "device", "family", "product")
            values = devices.setdefault((pool, device), {})
            products[pool, device] = family, product
        if name == _THROTTLED:
            reasons, (reason,) = values.setdefault("throttle_reasons", ()), _labels(labels, "reason")
            if value == 1 and reason in THROTTLE_REASONS and reason not in reasons:
                values["throttle_reasons"] = (*reasons, reason)
        else:
            values[_FIELDS.get(name, name)] = value
        if len(devices) > MAX_ROWS or len(claims) > MAX_ROWS:
            raise ValueError(f"it has more than {MAX_ROWS} devices or claims")
    return ExposedValues(
        is_on,
        names_claims,
        tuple(
            DeviceValues(key[1], *products[key], values=_sample(values, f"{key[1]}: ", problems), pool=key[0])
            for key, values in devices.items()
        ),
        tuple(
            ClaimValues(namespace, name, device, idle_seconds=_idle(values), values=_sample(values, "", []))
            for (namespace, name, device), values in claims.items()
        ),
        tuple(problems),
    )


def _series(line: str) -> tuple[Mapping[str, str], float]:
    """Return the labels and the value of a line."""
    head, braces, value = line.rpartition("} ")
    labels = head.partition("{")[2]
    if not braces or _LABELS.fullmatch(labels) is None or _NUMBER.fullmatch(value) is None:
        raise ValueError(f"a line is not in the text format of Prometheus: {line[:80]!r}")
    return dict(_unescaped(labels)), float(value)


def _unescaped(labels: str) -> Iterator[tuple[str, str]]:
    for name, value in _EACH_LABEL.findall(labels):
        if len(value) > MAX_LABEL_CHARS:
            raise ValueError(f"the label {name} has more than {MAX_LABEL_CHARS} characters")
        yield name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value) if "\\" in value else value


def _labels(labels: Mapping[str, str], *names: str) -> list[str]:
    try:
        return [labels[name] for name in names]
    except KeyError as error:
        raise ValueError(f"a series of telemetry has no label {error.args[0]}") from error


def _sample(values: Mapping[str, Any], what: str, problems: list[str]) -> DeviceSample:
    sample, dropped = drop_impossible(DeviceSample(**{name: values[name] for name in values if name != _IDLE}))
    problems += (what + problem for problem in dropped)
    sizes = ("memory_used_bytes", "memory_limit_bytes")
    whole: dict[str, Any] = {name: int(size) for name in sizes if (size := getattr(sample, name)) is not None}
    return msgspec.structs.replace(sample, **whole)


def _idle(values: Mapping[str, float]) -> float | None:
    seconds = values.get(_IDLE)
    return seconds if seconds is not None and 0 <= seconds < float("inf") else None
