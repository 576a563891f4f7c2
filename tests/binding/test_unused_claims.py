"""The comparison of claims that were prepared ahead with the API server, and its order with their preparation."""

from __future__ import annotations

import asyncio

from binding.conftest import Stage
from dra_agent.binding.nominated_pods import ClaimName
from dra_agent.binding.unused_claims import UnusedClaims
from dra_agent.kube_client import ApiClient
from dra_agent.prepare.ahead import AheadPreparer
from eventually import eventually_async
from prepare.simulated_node import DRIVER


def test_a_claim_that_is_being_prepared_is_not_compared(stage: Stage) -> None:
    """It may be allocated again after the read: the release would then undo the next preparation."""
    for name, device in (("busy", "gpu-0"), ("idle", "gpu-1")):
        stage.allocate(name, device)
        stage.node.preparer.prepare_ahead(stage.api.store.get("resourceclaims", "default", name))
        stage.deallocate(name)
    locks = {ClaimName("default", "busy"): asyncio.Lock(), ClaimName("default", "idle"): asyncio.Lock()}

    async def scenario(client: ApiClient) -> None:
        unused = UnusedClaims(
            client,
            stage.node.ledger,
            AheadPreparer(stage.node.preparer),
            driver=DRIVER,
            lock_of=locks.__getitem__,
            is_leader=lambda: True,
            interval_s=0.01,
        )
        async with locks[ClaimName("default", "busy")]:
            task = asyncio.create_task(unused.run())
            await eventually_async(lambda: stage.ahead() == ["busy"])
            assert not [seen for seen in stage.api.requests if seen.path.endswith("/busy")]
        await eventually_async(lambda: stage.ahead() == [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stage.run(scenario)
