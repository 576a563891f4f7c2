"""The same with agents of different state directories, each of which is offered the same devices."""

from __future__ import annotations

from pathlib import Path

from prepare.life_cycle.asking import Member
from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run


class TwoStateDirectories(LifeCycle):
    members = (Member("old", "one", shared=True), Member("new", "one", shared=True), Member("only", "two"))


def test_two_state_directories(short_path: Path) -> None:
    run(TwoStateDirectories, short_path)
