"""A kernel that hangs, met by set-ups: an access is given up because it hangs, and never because a machine is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from eventually import DEADLINE_S, POLL_INTERVAL_S


def wait_for_access(device: str) -> None:
    """Wait until the thread of an access that was given up has ended, after the kernel has returned."""
    for thread in threading.enumerate():
        if thread.name == f"access {device}":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@pytest.fixture
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which nothing hangs: no process is abandoned because it starts slowly, nor its later runs."""
    monkeypatch.setattr("dra_agent.device_setup.rtnetlink.TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr("dra_agent.device_setup.sysfs_writer.TIMEOUT_S", DEADLINE_S)
    for module in ("mover", "setup"):
        monkeypatch.setattr(f"dra_agent.device_setup.net.{module}.SETUP_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the deadline of accesses: it passes as soon as one hangs in the simulated kernel."""
    hanging: set[threading.Thread] = set()
    patience_s = 10 * DEADLINE_S

    def sleep(seconds: float) -> None:
        # The simulated kernel sleeps while the requested operation waits for another process.
        hanging.add(threading.current_thread())
        time.sleep(seconds)

    class Access(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            while timeout == patience_s and self.is_alive() and self not in hanging:
                super().join(POLL_INTERVAL_S)
            if timeout != patience_s:
                super().join(timeout)

    def start(name: str, work: Callable[[], None]) -> threading.Thread:
        thread = Access(target=work, name=name, daemon=True)
        thread.start()
        return thread

    monkeypatch.setattr("dra_agent.device_setup.sysfs_writer.start_thread", start)
    monkeypatch.setattr("dra_simulate.kernel.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return patience_s
