"""The example specs: up to date, valid, and accepted by every version of the official library."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from dra_agent.cdi.registry import load_file, load_registry

EXAMPLES = Path(__file__).resolve().parents[2] / "cdi" / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.json"))


def test_checked_in_examples_are_up_to_date(examples: ModuleType) -> None:
    generated = dict(examples.examples())
    assert sorted(generated) == NAMES, "run `python cdi/generate.py`"
    for name, text in generated.items():
        assert (EXAMPLES / name).read_text() == text, f"{name} has changed: run `python cdi/generate.py`"


@pytest.mark.parametrize("name", NAMES)
def test_each_example_matches_schema_and_validation(name: str, schema: dict[str, Any]) -> None:
    jsonschema.validate(json.loads((EXAMPLES / name).read_text()), schema)
    assert load_file(EXAMPLES / name).refused == ()


@pytest.mark.parametrize("name", NAMES)
def test_official_library_injects_each_example(name: str, oracle: Any, tmp_path: Path) -> None:
    text = (EXAMPLES / name).read_text()
    (tmp_path / name).write_text(text)
    spec = json.loads(text)
    ids = [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
    response = oracle([tmp_path], [ids])
    assert response["errors"] == {}
    assert response["devices"] == sorted(ids)
    assert list(response["minimum"].values()) == [spec["cdiVersion"]], "not the lowest possible version"
    injected = response["injections"][0]
    assert "error" not in injected
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    nodes = {node["path"] for edit in edits for node in edit.get("deviceNodes", [])}
    assert {device["path"] for device in injected["spec"]["linux"].get("devices", [])} == nodes
    assert set(injected["spec"]["process"]["env"]) == {text for edit in edits for text in edit["env"]}


def test_every_device_node_has_type_and_numbers() -> None:
    for name in NAMES:
        for registered in load_registry([EXAMPLES]).devices.values():
            edits = (registered.spec.container_edits, registered.device.container_edits)
            for node in (node for edit in edits for node in edit.device_nodes):
                assert node.type and node.major is not None and node.minor is not None, (name, node)
