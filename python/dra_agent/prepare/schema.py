"""The JSON schema of every kind of configuration, made from the shapes that decode it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dra_agent.prepare.setup import DeviceSetup

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(setups: Iterable[DeviceSetup]) -> dict[str, Any]:
    """Describe the parameters of all set-ups, one of which an object is; same order and contents for the same kinds."""
    known = sorted(setups, key=lambda setup: (setup.kind[0], setup.kind[1]))
    shapes, parts = msgspec.json.schema_components([setup.parameters for setup in known], ref_template="#/$defs/{name}")
    for setup, shape in zip(known, shapes, strict=True):
        part = parts[shape["$ref"].rpartition("/")[2]]
        version, kind = setup.kind
        named = {"apiVersion": {"const": version}, "kind": {"const": kind}}
        part["properties"] = {**named, **part["properties"]}
        part["required"] = [*named, *part.get("required", [])]
    return {
        "$schema": DIALECT,
        "title": "Configuration of devices in claims and classes",
        "oneOf": shapes,
        "$defs": parts,
    }
