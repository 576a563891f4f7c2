"""Hosts whose name cannot be that of a node, such as a rescue system's "(none)": only what uses the name needs it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.agent import signals
from dra_agent.cli.parser import build_parser, leaves
from dra_agent.doctor.bundle.collector import MANIFEST

Command = Callable[..., tuple[int, str, str]]

HOST = ("--simulate", "vm-1gpu")
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: name}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
"""
FILE = ("-f", "claim.yaml")
COMMANDS: dict[str, tuple[bool, tuple[str, ...]]] = {
    # Pools are named after the node.
    "run": (True, ("--standalone", *HOST)),
    "slices": (True, HOST),
    # It checks what `run` checks.
    "config check": (True, ()),
    "topology": (False, HOST),
    "devices": (False, HOST),
    "doctor": (False, HOST),
    "config show": (False, ()),
    "config keys": (False, ()),
    "config validate": (False, ("claim.yaml",)),
    "config schema": (False, ()),
    "top": (False, ()),
    "claim apply": (False, FILE),
    "claim list": (False, ()),
    "claim get": (False, ("name",)),
    "claim wait": (False, ("name", "--timeout", "1")),
    "claim delete": (False, ("name",)),
    "claim run": (False, (*FILE, "true")),
    "claim holders": (False, ()),
    "claim usage": (False, ()),
    "claim release": (False, ("default/name",)),
    "claims release": (False, ("default/name",)),
    "explain": (False, ("claim/name",)),
    "capacity": (False, ("claim/name", "--nodes", "2=vm-1gpu")),
    "reclaim start": (False, ("--yes",)),
    "reclaim cancel": (False, ()),
    "reclaim status": (False, ()),
    "cdi list": (False, ()),
    "cdi show": (False, ("vendor.com/gpu=0",)),
    "cdi try": (False, ("vendor.com/gpu=0",)),
    "cdi validate": (False, (".",)),
    "completion bash": (False, ()),
    "completion zsh": (False, ()),
    "completion fish": (False, ()),
}
SERVES_UNTIL_STOPPED = {"ui"}
"""Read through `HostReader` below."""
OF_FOLDERS = "simulate "
"""These commands know no node: they build and change folders."""
MESSAGE = "the host's name: '(none)' is not a DNS subdomain of at most 253 characters; choose another with --node-name"


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "(none)")
    monkeypatch.setattr(signals, "install", lambda: None)


def test_each_command_is_in_the_table() -> None:
    known = {" ".join(words) for words, _ in leaves(build_parser())}
    assert {name for name in known if not name.startswith(OF_FOLDERS)} == COMMANDS.keys() | SERVES_UNTIL_STOPPED


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_needs_the_name_only_where_it_uses_it(words: str, command: Command, tmp_path: Path) -> None:
    needs, arguments = COMMANDS[words]
    (tmp_path / "work" / "claim.yaml").write_text(CLAIM)
    code, printed, errors = command(*words.split(), *arguments)
    if needs:
        # `config check` prints the problems that it finds.
        assert code == (1 if words == "config check" else 2)
        assert MESSAGE in (printed if words == "config check" else errors)
        assert errors.count("\n") <= 1
    else:
        assert "name: '(none)'" not in printed + errors
        assert "internal error" not in errors
        assert "unrecognized" not in errors and "required" not in errors


@pytest.mark.parametrize("words", ["topology", "devices", "doctor", "config show"])
def test_what_does_not_need_the_name_works(words: str, command: Command) -> None:
    _, arguments = COMMANDS[words]
    code, _, errors = command(*words.split(), *arguments, "-o", "json")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("name", ["(none)", "", "localhost.localdomain_x", "Rescue_1", "-", "a" * 300])
def test_no_host_name_prevents_the_list_of_devices(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    code, printed, errors = command("devices", *HOST, "-o", "json")
    assert (code, errors) == (0, "")
    assert {device["pool"] for device in json.loads(printed)["devices"]} == {None}


def test_a_device_of_a_host_without_a_node_name_has_no_pool(command: Command) -> None:
    code, printed, errors = command("devices", *HOST, "-o", "name")
    assert (code, errors) == (0, "")
    name = printed.splitlines()[0].rpartition("/")[2]
    code, printed, errors = command("devices", name, *HOST)
    assert (code, errors) == (0, "")
    assert [line.split()[-1] for line in printed.splitlines() if "pool" in line.split()] == ["-"]
    code, printed, errors = command("devices", name, *HOST, "--node-name", "rescue")
    assert (code, errors) == (0, "")
    assert [line.split()[-1] for line in printed.splitlines() if "pool" in line.split()] == ["rescue/gpu"]


def test_the_doctor_reports_a_name_that_no_agent_can_use(command: Command) -> None:
    def found(*more: str) -> list[str]:
        _, printed, _ = command("doctor", *HOST, "-o", "json", *more)
        findings = json.loads(printed)["findings"]
        return [one["what"] for one in findings if one.get("where") == "the host's name"]

    assert found() == ["'(none)' is not a DNS subdomain of at most 253 characters, so no agent can start here"]
    assert found("--node-name", "rescue") == []


def test_the_page_shows_a_host_without_a_node_name(tmp_path: Path) -> None:
    from dra_cluster.cli.ui_host import HostReader

    arguments = build_parser("ui").parse_args(["ui", *HOST, "--state-dir", str(tmp_path)])
    reader = HostReader(arguments)
    try:
        view = reader.read()
    finally:
        reader.close()
    assert view.name == "(none)" and view.devices


def test_a_bundle_has_all_parts_but_slices_which_name_the_reason(command: Command, tmp_path: Path) -> None:
    import tarfile

    code, _, _ = command("doctor", *HOST, "--bundle", str(tmp_path / "bundle.tar.gz"))
    assert code == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        files = {Path(name).name: name for name in archive.getnames()}
        assert {"devices.json", "topology.json"} <= files.keys() and "slices.json" not in files
        manifest = archive.extractfile(files[MANIFEST])
        assert manifest is not None and "is not a DNS subdomain" in manifest.read().decode()


def test_a_name_that_identifies_no_host_is_no_identity() -> None:
    from dra_agent.doctor.record.identity import Replacements

    for name in ("(none)", "localhost"):
        assert Replacements(b"key", name).text(f"peer: {name}.") == f"peer: {name}."
    assert Replacements(b"key", "rescue").text("peer: rescue.") != "peer: rescue."
