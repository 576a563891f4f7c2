from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import dra_simulate
from dra_agent.cli.main import main
from dra_agent.conflicts import DeviceConflicts, SavedConflicts, save_conflicts
from dra_simulate import inject


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DRA_AGENT_NODE_NAME", "node-1")
    monkeypatch.delenv("DRA_AGENT_CONFIG", raising=False)


def devices(*arguments: str) -> int:
    return main(["devices", *arguments])


def test_a_table_has_one_line_for_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("--simulate", "cpu-only") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["nic-0000-3b-00-0", "nic", "broadcom"] in [line[:3] for line in lines]
    assert sum(line[:1] != [] and line[0].startswith("nic-") for line in lines) == 2


def test_programs_get_the_published_device_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("--simulate", "cpu-only", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"devices", "excluded", "notes", "problems"}
    first = document["devices"][0]
    assert first["attributes"]["type"] == {"string": "nic"}
    assert first["pool"] == "node-1/nic"
    assert first["held_by"] == []
    import yaml

    assert devices("--simulate", "cpu-only", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["devices"][0]["name"] == first["name"]


def test_one_device_is_shown_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("nic-0000-3b-00-0", "--simulate", "cpu-only") == 0
    shown = capsys.readouterr().out
    for text in ("resource.kubernetes.io/pciBusID", "0000:3b:00.0", "isSriovVf", "node-1/nic", "healthy"):
        assert text in shown
    assert devices("nic-0000-3b-00-0", "--simulate", "cpu-only", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "nic-0000-3b-00-0"


def test_a_missing_device_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("nic-0000-3b-00-9", "--simulate", "cpu-only") == 1
    error = capsys.readouterr().err
    assert "nic-0000-3b-00-9: no such device on this host; did you mean nic-0000-3b-00-" in error


def test_a_family_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("--simulate", "cpu-only", "--family", "gpu") == 0
    assert capsys.readouterr().out == "no devices that can be claimed\n"


def test_rules_of_the_configuration_apply_and_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.toml"
    rule = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:3b:00.0"'
    config.write_text(f"[inventory]\nexclude = ['{rule}']\n")
    assert devices("--simulate", "cpu-only", "--config", str(config)) == 0
    captured = capsys.readouterr()
    assert "nic-0000-3b-00-0" not in captured.out
    assert f"not published (rule): nic-0000-3b-00-0: inventory.exclude[0]: {rule}" in captured.err
    assert devices("nic-0000-3b-00-0", "--simulate", "cpu-only", "--config", str(config)) == 1
    assert "is not published" in capsys.readouterr().err


def test_devices_that_one_rule_excludes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("""[inventory]
exclude = ['''has(device.attributes["dra-agent.internal"].profile)
  && device.attributes["dra-agent.internal"].profile != "1g.10gb"''']

[[inventory.partition]]
mode = "mig"
when = "true"
""")
    assert devices("--simulate", "h100-pcie", "--config", str(config)) == 0
    captured = capsys.readouterr()
    (line,) = (one for one in captured.err.splitlines() if one.startswith("not published"))
    assert line.startswith("not published (rule): gpu-0000-11-00-0-mig-1g-10gb-me-6 and ")
    assert line.endswith(
        'other devices: inventory.exclude[0]: has(device.attributes["dra-agent.internal"].profile)'
        ' && device.attributes["dra-agent.internal"].profile != "1g.10gb"'
    )
    assert devices("--simulate", "h100-pcie", "--config", str(config), "-o", "json") == 0
    excluded = json.loads(capsys.readouterr().out)["excluded"]
    assert f" and {len(excluded) - 1} other devices: " in line


def test_a_rule_that_does_not_compile_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[inventory]\ninclude = ['true', 'device.']\n")
    assert devices("--simulate", "cpu-only", "--config", str(config)) == 2
    error = capsys.readouterr().err
    assert "inventory.include[1]" in error
    assert "'device.'" in error


def test_an_empty_or_missing_sysfs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert devices("--sysfs-root", str(tmp_path / "none")) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert devices("--sysfs-root", str(tmp_path / "empty")) == 1
    assert str(tmp_path / "empty") in capsys.readouterr().err


def test_a_device_of_another_driver_is_reported_as_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conflicts = DeviceConflicts({"nic-0000-3b-00-0": "driver dra.net"})
    (tmp_path / "state").mkdir()
    save_conflicts(tmp_path / "state", SavedConflicts(conflicts))
    assert devices("--simulate", "cpu-only") == 0
    printed = capsys.readouterr()
    assert "nic-0000-3b-00-0" not in printed.out and "nic-0000-3b-00-1" in printed.out
    assert (
        "not published (other-manager): nic-0000-3b-00-0: driver dra.net also advertises it on this node" in printed.err
    )
    assert devices("nic-0000-3b-00-0", "--simulate", "cpu-only") == 1
    assert "dra.net" in capsys.readouterr().err
    save_conflicts(tmp_path / "state", SavedConflicts(conflicts, published=True))
    assert devices("nic-0000-3b-00-0", "--simulate", "cpu-only") == 0


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Watch a simulated host with a command: a GPU is unplugged, plugged in again, and the command is interrupted."""
    root = tmp_path / "host"
    host = dra_simulate.build("vm-1gpu", root)

    def interrupt() -> None:
        raise KeyboardInterrupt

    steps = iter([lambda: inject.unplug(root, "0000:00:04.0"), lambda: inject.replug(root, "0000:00:04.0"), interrupt])
    # Between two polls, instead of a wait.
    monkeypatch.setattr("dra_agent.cli.watch.time", SimpleNamespace(sleep=lambda _: next(steps)()))
    roots = ("--sysfs-root", str(host.sysfs), "--dev-root", str(host.dev))
    return lambda *arguments: main([*arguments, "--watch", *roots])


def test_watched_devices_are_printed_when_they_change(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched("devices", "--family", "gpu") == 130
    heading, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading[0] == "NAME" and [row[0] for row in rows] == ["gpu-0000-00-04-0"] * 3
    assert [" ".join(rows[1]).count("removed"), " ".join(rows[2]).count("removed")] == [1, 0]


def test_a_watched_device_that_is_removed_is_a_json_object(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched("devices", "gpu-0000-00-04-0", "-o", "json") == 130
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["name"] for one in documents] == ["gpu-0000-00-04-0"] * 3
    assert [one["health"] == "removed" for one in documents] == [False, True, False]


def test_watched_slices_are_printed_when_they_change(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched("slices") == 130
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith("POOL")
    gpu = [row for row in rows if row.startswith("node-1/gpu")]
    assert len(gpu) == 3 and gpu[1].endswith("nothing") and gpu[0] == gpu[2]
    assert len(rows) == 4, "the slice of the NIC is printed once"
