"""Every profile: it states what it is made from, and it can be built."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dra_agent.cli import terminal
from dra_agent.cli.main import main
from dra_agent.host import Host
from dra_simulate import profiles
from dra_simulate.profiles import load_profile


@pytest.mark.parametrize("profile", profiles())
def test_a_profile_has_a_source_and_builds(profile: str, standing: Callable[[str], Host]) -> None:
    machine = load_profile(profile)
    assert machine.name == profile
    assert machine.source.strip()
    assert standing(profile).sysfs.is_dir()


def test_the_list_of_profiles_shows_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "profiles", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    machines = [load_profile(name) for name in profiles()]
    assert listed == [
        {"profile": one.name, "machine": one.description, "source": one.source, "untidy": f"{one.name}-untidy"}
        for one in machines
    ]
    assert main(["simulate", "profiles"]) == 0
    shown = capsys.readouterr()
    assert "dgx-h100-untidy" in shown.err
    heading, *rows = shown.out.splitlines()
    assert heading.split() == ["PROFILE", "MACHINE", "SOURCE"]
    assert [row.endswith(one.source) for row, one in zip(rows, machines, strict=True)] == [True] * len(machines)


def test_a_narrow_terminal_omits_sources(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    assert main(["simulate", "profiles"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["PROFILE", "MACHINE"]
    assert main(["simulate", "profiles", "-o", "wide"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["PROFILE", "MACHINE", "SOURCE"]
