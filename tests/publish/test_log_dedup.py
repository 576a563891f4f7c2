from __future__ import annotations

from dra_agent.kube_client import ForbiddenError, UnavailableError
from dra_agent.publish.errors import LogDeduplicator


def test_an_error_is_logged_once_and_another_kind_at_once() -> None:
    now = [0.0]
    dedup = LogDeduplicator(lambda: now[0])
    assert not dedup.is_over()
    assert dedup.is_news(UnavailableError("no connection"))
    assert not dedup.is_news(UnavailableError("no connection"))
    assert not dedup.is_news(UnavailableError("no answer")), "the same kind with another message"
    assert dedup.is_news(ForbiddenError("no"))
    assert dedup.is_news(UnavailableError("no answer"))
    now[0] = 61.0
    assert not dedup.is_news(UnavailableError("no answer"))
    assert dedup.is_news(UnavailableError("no connection"))
    assert dedup.is_over() and not dedup.is_over()
    assert dedup.is_news(UnavailableError("no connection"))
