"""Threads of an agent that compute let a call of the kubelet continue soon."""

from __future__ import annotations

import re

from .conftest import Start

REPORT_AT_END = """
import asyncio, sys
default_s, run = sys.getswitchinterval(), asyncio.Runner.run
def run_and_report(*arguments, **options):
    try:
        return run(*arguments, **options)
    finally:
        print(f"switch interval {default_s} {sys.getswitchinterval()} end", file=sys.stderr, flush=True)
asyncio.Runner.run = run_and_report
"""


def test_a_waiting_thread_continues_ten_times_as_soon_as_by_default(start: Start) -> None:
    agent = start(patch=REPORT_AT_END).ready()
    assert agent.end() == 0
    found = re.search(r"switch interval (\S+) (\S+) end", agent.log_text())
    assert found is not None, agent.log_text()
    assert float(found[2]) <= float(found[1]) / 10
