"""`--watch` in JSON and YAML: one document for each item that changed, in a form that parsers can separate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import dra_simulate
from cli.manifests import CLASS, claim, write
from dra_agent.cli.main import main
from dra_agent.standalone.protocol import Client, Delete, Get
from dra_simulate import inject
from eventually import DEADLINE_S
from standalone.service_thread import ServiceThread

Command = Callable[..., tuple[int, str, str]]
Watch = Callable[..., str]
FORMATS = ("json", "yaml")


@pytest.fixture
def between_polls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run each of the steps between two polls, instead of a wait; after them the command is interrupted."""

    def run_steps(*steps: Callable[[], object]) -> None:
        remaining = iter(steps)

        def sleep(seconds: float) -> None:
            step = next(remaining, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr("dra_agent.cli.watch.time", SimpleNamespace(sleep=sleep))

    return run_steps


def documents(text: str, output: str) -> list[dict[str, Any]]:
    """Decode what a script reads: a line of JSON at a time, or the documents of a YAML stream."""
    found: Iterator[Any] = map(json.loads, text.splitlines()) if output == "json" else yaml.safe_load_all(text)
    values = list(found)
    assert all(isinstance(value, dict) for value in values)
    return values


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("words", [("list", "-A"), ("get", "a", "b", "c")])
def test_every_claim_that_changes_is_a_document(
    agent: ServiceThread, command: Command, between_polls: Callable[..., None], output: str, words: Sequence[str]
) -> None:
    write(Path("claims.yaml"), CLASS, *(claim(name) for name in ("a", "b", "c")))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    before = json.loads(command("claim", "list", "-o", "json")[1])
    first = {view["name"]: view["phase"] for view in before}
    assert sorted(first.values()) == ["Pending", "Prepared", "Prepared"]

    def delete_prepared() -> None:
        with Client(agent.path) as client:
            for name, phase in first.items():
                if phase == "Prepared":
                    client.call(Delete("ResourceClaim", name, "default", DEADLINE_S))
            for name, phase in first.items():
                if phase == "Pending":
                    client.call(Get("default", name, DEADLINE_S))

    extra = ("--ignore-not-found",) if words[0] == "get" else ()
    between_polls(delete_prepared)
    code, text, _ = command("claim", *words, "--watch", "-o", output, *extra)
    assert code == 130
    found = [(view["name"], view["phase"]) for view in documents(text, output)]
    assert found[:3] == list(first.items())
    assert sorted(found[3:]) == sorted(
        (name, "Deleted" if phase == "Prepared" else "Prepared") for name, phase in first.items()
    )


@pytest.mark.parametrize("output", FORMATS)
def test_every_holder_that_changes_is_a_document(
    agent: ServiceThread, command: Command, between_polls: Callable[..., None], output: str
) -> None:
    write(Path("claims.yaml"), CLASS, claim("a"), claim("b"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0

    def delete() -> None:
        with Client(agent.path) as client:
            for name in ("a", "b"):
                client.call(Delete("ResourceClaim", name, "default", DEADLINE_S))

    between_polls(delete)
    code, text, _ = command("claim", "holders", "--watch", "-o", output)
    assert code == 130
    assert sorted((row["claim"], row["state"] == "released") for row in documents(text, output)) == [
        ("a", False),
        ("a", True),
        ("b", False),
        ("b", True),
    ]


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize(
    ("words", "kinds"), [(("devices",), {None}), (("slices",), {"ResourceSlice"})], ids=["devices", "slices"]
)
def test_every_device_and_slice_that_changes_is_a_document(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    between_polls: Callable[..., None],
    output: str,
    words: Sequence[str],
    kinds: set[str | None],
) -> None:
    root = tmp_path / "host"
    host = dra_simulate.build("vm-1gpu", root)
    between_polls(lambda: inject.unplug(root, "0000:00:04.0"), lambda: inject.replug(root, "0000:00:04.0"))
    roots = ("--sysfs-root", str(host.sysfs), "--dev-root", str(host.dev))
    assert main([*words, "--watch", "-o", output, *roots]) == 130
    found = documents(capsys.readouterr().out, output)
    assert {value.get("kind") for value in found} == kinds
    names = [value.get("name") or value["metadata"]["name"] for value in found]
    assert len(names) == 4 and sorted(names.count(name) for name in set(names)) == [1, 3]
