"""The same with two agents of a rolling update: whoever is asked, and whoever dies or hangs, there is one truth."""

from __future__ import annotations

from pathlib import Path

from prepare.life_cycle.asking import Member
from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run


class TwoAgents(LifeCycle):
    members = (Member("old", "one", shared=True), Member("new", "one", shared=True))


def test_two_agents_on_one_state_directory(short_path: Path) -> None:
    run(TwoAgents, short_path)
