"""Commands while the agent runs and its file has become invalid: they reach the agent, and report the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.manifests import CLASS, claim, write
from standalone.service_thread import ServiceThread

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of the service, with a mistake."""
    file = tmp_path / "config.toml"
    file.write_text('state_dir = "/etc"\nlog_levle = "debug"\nmetrics_address = "nowhere"\n')
    monkeypatch.setattr("dra_agent.agent.config.DEFAULT_FILE", file)
    return file


def test_claims_are_listed_and_deleted(agent: ServiceThread, command: Command, damaged: Path) -> None:
    write(Path("claim.yaml"), CLASS, claim("train"))
    code, _, errors = command("claim", "apply", "-f", "claim.yaml")
    assert code == 0 and errors.count("log_levle") == 1 and str(damaged) in errors and "warning" in errors
    code, text, errors = command("claim", "list", "-o", "json")
    assert code == 0 and [one["name"] for one in json.loads(text)] == ["train"] and "log_levle" in errors
    code, text, _ = command("claim", "delete", "train")
    assert code == 0 and "deleted" in text


@pytest.mark.parametrize("text", ["state_dir = \n", "\0", "[inventory\n"])
def test_a_file_that_is_not_toml_is_reported(agent: ServiceThread, command: Command, damaged: Path, text: str) -> None:
    damaged.write_text(text)
    code, _, errors = command("claim", "list")
    assert code == 0 and str(damaged) in errors


def test_doctor_reports_the_file(command: Command, damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    code, text, _ = command("doctor", "--simulate", "cpu-only", "--cdi-dir", str(tmp_path / "cdi"), "-o", "json")
    found = [one for one in json.loads(text)["findings"] if one["check"] == "configuration"]
    assert code == 1
    assert sorted(one["severity"] for one in found if str(damaged) in one["what"]) == ["problem", "problem"]
    assert any("log_levle" in one["what"] for one in found) and any("nowhere" in one["what"] for one in found)
    assert not [one for one in json.loads(text)["findings"] if "the check failed" in one["what"]]


def test_a_file_that_a_flag_names_must_be_valid(command: Command, damaged: Path) -> None:
    code, _, errors = command("claim", "list", "--config", str(damaged))
    assert code == 2 and "log_levle" in errors


def test_the_check_of_a_reload_refuses_the_file(command: Command, damaged: Path) -> None:
    code, text, _ = command("config", "check", str(damaged))
    assert code == 1 and "log_levle" in text


def test_a_wrong_variable_is_not_ignored(
    agent: ServiceThread, command: Command, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_DRIVER_NAME", "No Name")
    code, _, errors = command("claim", "list")
    assert code == 2 and "DRA_AGENT_DRIVER_NAME" in errors
