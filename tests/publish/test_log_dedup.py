from __future__ import annotations

from dra_agent.kube_client import ForbiddenError, UnavailableError
from dra_agent.publish.errors import LogDeduplicator


def test_a_trouble_is_said_once_and_another_at_once() -> None:
    now = [0.0]
    complaint = LogDeduplicator(lambda: now[0])
    assert not complaint.is_over()
    assert complaint.is_news(UnavailableError("no connection"))
    assert not complaint.is_news(UnavailableError("no connection"))
    assert not complaint.is_news(UnavailableError("no answer")), "the same kind in other words"
    assert complaint.is_news(ForbiddenError("no"))
    assert complaint.is_news(UnavailableError("no answer"))
    now[0] = 61.0
    assert not complaint.is_news(UnavailableError("no answer"))
    assert complaint.is_news(UnavailableError("no connection"))
    assert complaint.is_over() and not complaint.is_over()
    assert complaint.is_news(UnavailableError("no connection"))
