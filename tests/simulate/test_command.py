"""`dra-agent simulate`, and the examples of its page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dra_agent.cli.main import main
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate" / "simulate.md"


def test_the_commands_of_the_page_work_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ ((?:dra-agent simulate|printf) .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 24
    for command in commands:
        if command.startswith("printf"):
            subprocess.run(["bash", "-c", command], check=True)
        else:
            assert main(command.split()[1:]) == 0, command
    output = capsys.readouterr().out
    assert "unplugged 0000:52:00.0" in output
    assert "plugged 0000:52:00.0 in again" in output
    assert "cleared 6 faults" in output


def test_the_machine_of_the_page_can_be_built(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {"directory": tmp_path / "desk"}
    exec(example, names)
    host = names["host"]
    assert isinstance(host, Host)
    inventory = collect(host, scan(host), InventorySettings())
    assert [device.name for device in inventory.devices] == ["gpu-0000-01-00-0"]
    assert inventory.problems == ()


def test_the_page_lists_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "profiles"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    # A row can describe several.
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`([a-z0-9.-]+)`", row)] == listed


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("build dgx {root}", 2, "unknown profile 'dgx'; known: dgx-h100, hgx-h200, "),
        ("build h100-nvk {root}", 2, "; did you mean h100-nvl?"),
        ("build cpu-only {full}", 1, "not empty, and not a simulated host; name an empty or a new directory"),
        ("unplug {root} 0000:3b:00.0", 2, "not a simulated host; make one with `dra-agent simulate build PROFILE "),
        ("unplug {host} nothing", 2, "no device 'nothing' in cpu-only; known: 0000:3b:00.0, "),
        ("xid {host} 0000:3b:00.0 48", 2, "0000:3b:00.0 is not an NVIDIA GPU; the GPUs of cpu-only: none"),
        ("xid {host} 0000:3b:00.0 many", 2, "argument NUMBER: many is not a whole number from 1 to 2147483647"),
        ("xid {host} 0000:3b:00.0 48 --instance x", 2, "x is not a number, or two with a slash, such as 9/0"),
        ("process {host} 9 --device 0 --utilization 40", 2, "40 is not two numbers from 0 to 100, such as 40,10"),
        ("process {host} 9 --device 0 --utilization 1,101", 2, "1,101 is not two numbers from 0 to 100"),
        ("latency {host} --call nvmlInit", 2, "nvmlInit is not FUNCTION=MS, such as nvmlDeviceGetName=100"),
    ],
)
def test_wrong_wishes_get_one_message_and_change_nothing(
    command: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    assert main(["simulate", "build", "cpu-only", str(tmp_path / "host")]) == 0
    before = sorted(tmp_path.rglob("*"))
    places = {name: str(tmp_path / name) for name in ("root", "full", "host")}
    assert main(["simulate", *command.format(**places).split()]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_the_library_of_a_host_is_found_by_a_relative_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sim", "sim/"):
        assert main(["simulate", "build", "vm-1gpu", name]) == 0
    monkeypatch.setenv("LD_LIBRARY_PATH", "./sim/lib")
    capsys.readouterr()
    roots = ["--sysfs-root", "./sim/sys", "--dev-root", "sim/dev", "--state-dir", "state"]
    assert main(["devices", *roots, "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    gpu = next(device for device in json.loads(printed.out)["devices"] if device["family"] == "gpu")
    assert "memory" in gpu["capacity"], "only NVML knows it"
