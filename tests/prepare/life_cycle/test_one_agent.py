"""Any sequence of prepares, repeats, releases, hangs, kills, reboots and notices, with one agent on the host."""

from __future__ import annotations

from pathlib import Path

from prepare.life_cycle.agent_checks import AgentSpec
from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run


class OneAgent(LifeCycle):
    agent_specs = (AgentSpec("only", "one"),)


def test_one_agent(short_path: Path) -> None:
    run(OneAgent, short_path)
