"""The same with agents of different state directories that manage the same devices."""

from __future__ import annotations

from pathlib import Path

from prepare.life_cycle.agent_checks import AgentSpec
from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run


class TwoStateDirectories(LifeCycle):
    agent_specs = (AgentSpec("old", "one", shared=True), AgentSpec("new", "one", shared=True), AgentSpec("only", "two"))


def test_two_state_directories(short_path: Path) -> None:
    run(TwoStateDirectories, short_path)
