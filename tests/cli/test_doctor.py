from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_agent.cli.main import main


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "cdi").mkdir(mode=0o755)
    flags = {"--state-dir": tmp_path / "state", "--cdi-dir": tmp_path / "cdi", "--simulate": "l40s"}
    return ["doctor", *(str(word) for pair in flags.items() for word in pair)]


def test_a_healthy_host_exits_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is True
    assert {finding["severity"] for finding in answer["findings"]} <= {"ok", "warning"}


def test_a_problem_exits_with_1_and_shows_its_fix(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdi" / "bad.json").write_text("{")
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "bad.json" in printed and "fix or remove the file" in printed and "1 problem," in printed


def test_passed_checks_are_shown_on_request(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--all"]) == 0
    assert "can be claimed" in capsys.readouterr().out


def test_a_host_that_cannot_be_scanned_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--sysfs-root", str(tmp_path / "nowhere"), "--state-dir", str(tmp_path), "-o", "yaml"]) == 1
    assert "nowhere" in capsys.readouterr().out
