"""Unusual spellings in CDI files: the agent accepts and refuses the same files as the official libraries."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cdi.spellings import RECORDED, TEXTS, recorded, write
from dra_agent.cdi.registry import load_file, load_registry
from dra_agent.cli.main import main

VERSIONS = ("1.1", "1.0", "0.8")


def expected(name: str) -> list[str] | None:
    """Return the devices of the newest library that accepts the file; None if all refuse it."""
    verdicts = recorded()[name]
    # CDI 0.8 accepts a file without a device, of which nothing can be injected.
    return next((verdicts[version] for version in VERSIONS if verdicts[version]), None)


def test_every_spelling_has_a_record() -> None:
    assert set(recorded()) == set(TEXTS)


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_file_is_read_as_by_the_newest_library_that_accepts_it(tmp_path: Path, name: str) -> None:
    registry = load_registry([write(tmp_path, name)])
    devices = sorted(device.partition("=")[2] for device in registry.devices)
    assert (devices or None) == expected(name), registry.files[0].refused
    assert bool(registry.files[0].refused) == (expected(name) is None)


def test_the_record_is_what_the_library_reports(oracle: Any, tmp_path: Path) -> None:
    found: dict[str, list[str] | None] = {}
    for name in TEXTS:
        directory = write(tmp_path, name)
        try:
            answer = oracle([directory])
        except subprocess.CalledProcessError:  # the library crashes, and the runtime with it
            found[name] = None
            continue
        devices = [device.partition("=")[2] for device in sorted(answer["devices"] or [])]
        found[name] = None if answer["errors"] else devices
    assert found == {name: verdicts[oracle.version] for name, verdicts in recorded().items()}, RECORDED


def test_a_file_that_some_runtimes_reject_is_valid_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path, "key-case.yaml")
    caveat = "runtimes with CDI 1.1 refuse it: unknown field `Kind`"
    assert load_file(directory / "key-case.yaml").caveat.startswith(caveat)
    assert main(["cdi", "validate", str(directory)]) == 0
    assert caveat in capsys.readouterr().out


def test_aliases_cannot_grow_a_file_without_limit(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, y]"]
    lines += [f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 10)}]" for level in range(12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    assert "aliases" in load_file(tmp_path / "bomb.yaml").refused[0]


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    for name in ("deep.yaml", "deep.json"):
        (tmp_path / name).write_text("[" * 100_000)
        assert load_file(tmp_path / name).refused


def test_a_number_is_a_text_where_the_field_is_one(tmp_path: Path) -> None:
    hook = {"hookName": "prestart", "path": "/x", "args": [1.5]}
    devices = [{"name": 7, "containerEdits": {"hooks": [hook]}}]
    text = json.dumps({"cdiVersion": "0.8.0", "kind": "vendor.com/class", "devices": devices})
    (tmp_path / "a.json").write_text(text)
    (device,) = load_registry([tmp_path]).devices.values()
    assert (device.device.name, device.device.container_edits.hooks[0].args) == ("7", ("1.5",))
