"""`dra-agent config check|show|keys`: the agent's own configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dra_agent.agent.config_keys import DEPRECATED, config_keys
from dra_agent.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_valid_file_has_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    for file in [ROOT / "systemd/config.toml", *ROOT.glob("examples/agent/*.toml")]:
        assert main(["config", "check", str(file)]) == 0
        assert capsys.readouterr().out == f"{file}: no problems\n"


def test_problems_have_file_line_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text("standalone = true\nsate_dir = '/x'\n[inventory]\nexclude = ['nope']\n")
    assert main(["config", "check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file}:2: unknown key 'sate_dir'; did you mean state_dir?"
    assert lines[1].startswith(f"{file}:4: inventory.exclude[0]: 'nope' does not compile")
    assert main(["config", "check", str(file), "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["file"], answer["valid"], len(answer["problems"])) == (str(file), False, 2)
    assert answer["problems"][0] == {
        "file": str(file),
        "line": 2,
        "key": "sate_dir",
        "message": "unknown key 'sate_dir'",
        "todo": "did you mean state_dir?",
    }


def test_a_section_of_an_earlier_version_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text("standalone = true\n[otlp]\nendpoint = 'http://127.0.0.1:4318'\n")
    assert main(["config", "check", str(file)]) == 0
    ignored, result = capsys.readouterr().out.splitlines()
    assert ignored.startswith(f"{file}:2: otlp: no longer used") and result == f"{file}: no problems"
    assert main(["config", "check", str(file), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["problems"]) == (True, [])
    assert [(one["line"], one["key"]) for one in answer["ignored"]] == [(2, "otlp")]


def test_check_and_run_refuse_with_the_same_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text("standalone = true\nlog_level = 'loud'\n[health]\nfatal = 3\n")
    assert main(["config", "check", str(file)]) == 1
    checked = capsys.readouterr().out.splitlines()
    assert main(["config", "show", "--config", str(file)]) == 2
    refused = capsys.readouterr().err.splitlines()
    assert refused == [f"dra-agent: {line}" for line in checked] and len(checked) == 2


def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "none.toml"), "-o", "json"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "cannot be read: No such file" in output.err


def test_values_are_shown_with_their_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text("\nlog_level = 'debug'\n")
    assert main(["config", "show", "--config", str(file), "--node-name", "n", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"key": "log_level", "value": "debug", "origin": f"{file}:2", "change": "reload"} in rows
    assert {"key": "node_name", "value": "n", "origin": "--node-name", "change": "restart"} in rows
    assert main(["config", "show", "--config", str(file), "--all", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in shown] == [key.name for key in config_keys() if key.name not in DEPRECATED]


def test_a_deprecated_key_is_shown_where_it_is_set_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (deprecated,) = DEPRECATED
    assert deprecated in [key.name for key in config_keys()]
    assert main(["config", "keys", "-o", "json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert "inventory.host_interfaces" in names and deprecated not in names
    assert main(["config", "keys"]) == 0
    assert deprecated not in capsys.readouterr().out
    file = tmp_path / "config.toml"
    file.write_text("[inventory]\nhost_uplink = 'include'\n")
    for more in ([], ["--all"]):
        assert main(["config", "show", "--config", str(file), "-o", "json", *more]) == 0
        row = {"key": deprecated, "value": "include", "origin": f"{file}:2", "change": "reload"}
        assert row in json.loads(capsys.readouterr().out)


def test_a_pipe_can_be_checked() -> None:
    command = [str(Path(sys.executable).with_name("dra-agent")), "config", "check", "-"]
    checked = subprocess.run(command, input=b"\nzzz = 1\n", capture_output=True, check=False, timeout=120)
    assert (checked.returncode, checked.stdout[:22]) == (1, b"/dev/stdin:2: unknown ")
