"""The types of the oldest and of the newest supported version of Kubernetes have every field that the chart renders.

tests/cluster/test_chart_api_versions.py has the versions between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.api_versions import OPERATOR, VARIANTS, decode, program, refused
from deploy.rendering import CHART, RenderText

CLAIM = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


@pytest.fixture(scope="session", params=["1.34", "1.37"])
def oracle(request: pytest.FixtureRequest) -> Path:
    version: str = request.param
    return program(version)


@pytest.mark.parametrize("variant", VARIANTS)
def test_types_have_every_field_of_the_chart(oracle: Path, render_text: RenderText, variant: str) -> None:
    assert not refused(oracle, render_text(VARIANTS[variant], api_versions=OPERATOR))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (CLAIM + "data: {a: b}\n", ""),
        (CLAIM + "dada: {a: b}\n", 'unknown field "dada"'),
        (CLAIM + "data: {a: b}\ndata: {a: b}\n", 'key "data" already set'),
        (CLAIM + "data: {a: 1}\n", "cannot unmarshal number"),
        (CLAIM.replace("v1", "resource.k8s.io/v9"), "no kind"),
    ],
)
def test_unknown_repeated_and_mistyped_fields_are_found(oracle: Path, manifest: str, message: str) -> None:
    (found,) = decode(oracle, manifest)
    assert message in found.error and bool(message) == bool(found.error)


def leaves(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the default of every value; maps with free keys are one value."""
    for key, value in values.items():
        rule = schema["properties"].get(key, {})
        if isinstance(value, dict) and "properties" in rule:
            yield from leaves(value, rule, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def value_at(values: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    return values


def test_every_value_differs_from_its_default_in_a_variant() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = dict(leaves(defaults, schema))
    assert len(found) >= 90
    untested = [
        path
        for path, default in found.items()
        if all(value_at(variant, path) in (None, default) for variant in VARIANTS.values())
    ]
    assert not untested, "set these values in a variant of tests/deploy/api_versions.py"
