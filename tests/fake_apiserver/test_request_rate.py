"""The requests per second that the agent sends to an API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dra_agent.kube_client import NotFoundError, UnavailableError, connect
from dra_agent.kube_client import http as transport
from dra_agent.kube_client.kinds import NODES, RESOURCE_CLAIMS
from dra_agent.kube_client.request_rate import BURST, REQUESTS_PER_S, RequestRate
from fake_apiserver.fake import FakeApi


def test_a_burst_is_free_and_later_requests_wait() -> None:
    now = 1000.0
    rate = RequestRate(clock=lambda: now)
    assert [rate.reserve() for _ in range(BURST)] == [0.0] * BURST
    assert [rate.reserve() for _ in range(3)] == pytest.approx([n / REQUESTS_PER_S for n in (1, 2, 3)])
    now += 10 / REQUESTS_PER_S
    assert [rate.reserve() for _ in range(7)] == [0.0] * 7, "three of the ten new tokens were taken before"
    assert rate.reserve() == pytest.approx(1 / REQUESTS_PER_S)
    now += 3600
    assert sum(rate.reserve() == 0.0 for _ in range(2 * BURST)) == BURST, "an idle hour does not add more than a burst"


def test_a_request_without_a_token_waits_and_reads_of_claims_do_not(
    fake_api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RequestRate", lambda: RequestRate(per_s=0.001, burst=2))
    fake_api.put("nodes", {"metadata": {"name": "n1"}})

    async def main() -> None:
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            for _ in range(2):
                assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"
            sent = len(fake_api.requests)
            with pytest.raises(UnavailableError, match=r"waited for its turn: .* at most 0\.001 requests per second"):
                await api.get(NODES, "n1", timeout=0.2)
            assert len(fake_api.requests) == sent
            for _ in range(5):
                with pytest.raises(NotFoundError):
                    await api.get(RESOURCE_CLAIMS, "missing", "default")

    asyncio.run(main())
