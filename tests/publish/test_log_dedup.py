from __future__ import annotations

from dra_agent.kube_client import ForbiddenError, UnavailableError
from dra_agent.kube_client.log_deduplicator import LogDeduplicator


def test_an_error_is_logged_once_and_another_kind_at_once() -> None:
    now = [0.0]
    dedup = LogDeduplicator(lambda: now[0])
    assert not dedup.is_over()
    assert dedup.should_log(UnavailableError("no connection"))
    assert not dedup.should_log(UnavailableError("no connection"))
    assert not dedup.should_log(UnavailableError("no answer")), "the same kind with another message"
    assert dedup.should_log(ForbiddenError("no"))
    assert dedup.should_log(UnavailableError("no answer"))
    now[0] = 61.0
    assert not dedup.should_log(UnavailableError("no answer"))
    assert dedup.should_log(UnavailableError("no connection"))
    assert dedup.is_over() and not dedup.is_over()
    assert dedup.should_log(UnavailableError("no connection"))
