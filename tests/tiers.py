"""The two tiers of tests that need no cluster.

`make test` is for everyone who has built the project: it needs no other program, no network and a few minutes. A test
with one of the marks below is left to `make test-all`, which CI runs. Nothing is skipped in the first tier because of
what a machine has, so that a result means the same everywhere. At its end, it prints what it left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

NAME = "thorough"

GO = pytest.mark.thorough("compare with Kubernetes' own Go code")
PROGRAMS = pytest.mark.thorough("need a program that the build does not need: a browser, promtool, helm, lspci, podman")
CASES = pytest.mark.thorough("run more cases of what a faster test checks")
PROCESSES = pytest.mark.thorough("start agents to check what a faster test checks without one")
PATIENCE = pytest.mark.thorough("wait for real time, or load the machine")
HOUSE = pytest.mark.thorough("check this repository, its pages and its packages, not the agent")

FIXTURES = {
    "evaluate_with_kubernetes": GO,
    "go_allocator": GO,
    "oracle": GO,
    "upstream": GO,
    "browser": PROGRAMS,
    "helm": PROGRAMS,
    "kubectl": PROGRAMS,
}
"""A test with one of these fixtures has its mark."""


class Tiers:
    """Counts the tests that a run with `-m "not thorough"` leaves out, by reason; workers report to the main one."""

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()
        self._by_worker: list[Counter[str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Mark tests by their fixtures, before `-m` selects by marks."""
        for item in items:
            for name in FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
                item.add_marker(FIXTURES[name])

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            mark = item.get_closest_marker(NAME)
            if mark is not None:
                self._left_out[mark.args[0]] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[NAME] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Each worker collects, and leaves out, the same tests.
        self._by_worker.append(Counter(getattr(node, "workeroutput", {}).get(NAME, {})))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        left_out = max([self._left_out, *self._by_worker], key=Counter.total)
        if left_out:
            terminalreporter.write_line(f"{left_out.total()} tests are left to `make test-all`:")
        for reason, number in left_out.most_common():
            terminalreporter.write_line(f"{number:6} {reason}")
