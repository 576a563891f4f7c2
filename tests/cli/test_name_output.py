"""`-o name`: names alone, which are arguments of other commands; commands without objects refuse it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dra_simulate
from cli.manifests import CLASS, claim, write

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def host(tmp_path: Path) -> tuple[str, ...]:
    """The flags of a simulated host with one GPU."""
    built = dra_simulate.build("vm-1gpu", tmp_path / "host")
    return "--sysfs-root", str(built.sysfs), "--dev-root", str(built.dev)


def test_names_of_devices_and_slices(command: Command, host: tuple[str, ...]) -> None:
    names = [entry["name"] for entry in json.loads(command("devices", *host, "-o", "json")[1])["devices"]]
    assert names and command("devices", *host, "-o", "name")[1].split() == names
    assert command("devices", names[0], *host, "-o", "name")[1] == f"{names[0]}\n"
    slices = [entry["metadata"]["name"] for entry in json.loads(command("slices", *host, "-o", "json")[1])["items"]]
    assert slices and command("slices", *host, "-o", "name")[1].split() == slices


def test_a_terminal_gets_names_without_a_heading(
    command: Command, host: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = command("devices", *host, "-o", "name")[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert command("devices", *host)[1].startswith("host "), "a table has one"
    assert command("devices", *host, "-o", "name")[1] == names


@pytest.mark.parametrize("words", [("devices",), ("slices",), ("cdi", "list")])
def test_without_objects_nothing_is_printed(
    command: Command, host: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("none.toml").write_text("cdi_dir = 'cdi'\n[inventory]\nexclude = ['true']\n")
    monkeypatch.setenv("DRA_AGENT_CONFIG", "none.toml")
    flags = () if words[0] == "cdi" else host
    assert command(*words, *flags)[1] != "", "a message for people"
    assert command(*words, *flags, "-o", "name")[:2] == (0, "")


def test_explain_names_the_devices_of_a_claim(command: Command, agent: object) -> None:
    write(Path("claims.yaml"), CLASS, claim("train", 2), claim("late"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    assert command("explain", "train", "-o", "name")[:2] == (0, "gpu-0\ngpu-1\n")
    assert command("explain", "late", "-o", "name")[:2] == (1, "")


@pytest.mark.parametrize(
    "words",
    [
        ("topology",),
        ("doctor",),
        ("reclaim", "status"),
        ("claim", "release", "train"),
        ("config", "check"),
        ("config", "validate", "claim.yaml"),
        ("cdi", "show", "train"),
        ("cdi", "validate"),
    ],
)
def test_commands_without_a_list_of_objects_refuse_it(command: Command, words: tuple[str, ...]) -> None:
    code, printed, errors = command(*words, "-o", "name")
    assert (code, printed) == (2, "") and "invalid choice: 'name'" in errors
