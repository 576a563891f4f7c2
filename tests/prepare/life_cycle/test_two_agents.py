"""The same with two agents of a rolling update: they agree, if either is called, killed or hangs."""

from __future__ import annotations

from pathlib import Path

from prepare.life_cycle.agent_checks import AgentSpec
from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run


class TwoAgents(LifeCycle):
    agent_specs = (AgentSpec("old", "one", shared=True), AgentSpec("new", "one", shared=True))


def test_two_agents_on_one_state_directory(short_path: Path) -> None:
    run(TwoAgents, short_path)
