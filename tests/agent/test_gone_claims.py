"""In Kubernetes mode, a claim that the kubelet does not release is released by the agent or by an operator."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import preloaded
from agent.test_kubernetes_mode import DRIVER, GPU, allocate, kubernetes, prepare, registered
from eventually import eventually
from fake_apiserver.fake import FakeApi

from .conftest import AgentProcess

__all__ = ["kubernetes"]


def release(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
    return preloaded.run(["claims", "release", *arguments, "--state-dir", str(state)], env=variables)


def move(fake_api: FakeApi, claim: tuple[str, str, str]) -> None:
    """Allocate the device of the same name on another node instead."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-b/gpu", "device": GPU}
    fake_api.set_status("resourceclaims", *claim[:2], {"allocation": {"devices": {"results": [result]}}})


LOSSES: dict[str, Callable[[FakeApi, tuple[str, str, str]], object]] = {
    "deleted": lambda api, claim: api.remove("resourceclaims", claim[1], claim[0]),
    "deallocated": lambda api, claim: api.set_status("resourceclaims", *claim[:2], {}),
    "on another node": move,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=list(LOSSES))
def test_a_claim_that_lost_its_devices_is_released_by_the_agent(
    kubernetes: Callable[..., AgentProcess],
    fake_api: FakeApi,
    kubelet_dir: Path,
    tmp_path: Path,
    lose: Callable[[FakeApi, tuple[str, str, str]], object],
) -> None:
    (tmp_path / "config.toml").write_text("[claims]\nrelease_gone_after = 0.5\n")
    claim = allocate(fake_api, "forgotten")
    agent = kubernetes("--config", str(tmp_path / "config.toml"))

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error
            lose(fake_api, claim)
            other = allocate(fake_api, "next")
            refused = (await prepare(driver, other)).error
            assert "is held by another claim; the agent's log names it" in refused
            await asyncio.to_thread(agent.wait_for, f"dra-agent claim release {claim[2]}")
            await asyncio.to_thread(agent.wait_for, "orphaned claim was released")
            assert not (await prepare(driver, other)).error

    asyncio.run(scenario())
    eventually(lambda: any(event["reason"] == "ClaimGone" for event in fake_api.objects("events")))


def test_an_operator_releases_a_claim(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, state: Path
) -> None:
    claim = allocate(fake_api, "one")
    kubernetes()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error
            refused = await asyncio.to_thread(release, state, "default/one")
            assert refused.returncode == 1 and "still exists" in refused.stderr
            unknown = await asyncio.to_thread(release, state, "default/none", "--force")
            assert unknown.returncode == 1 and "no claim of this name" in unknown.stderr
            fake_api.remove("resourceclaims", "one", "default")
            released = await asyncio.to_thread(release, state, claim[2], "-o", "json")
            assert released.returncode == 0, released.stderr
            result = json.loads(released.stdout)
            assert (result["name"], result["devices"], result["exists"]) == ("one", [GPU], False)
            other = allocate(fake_api, "two")
            assert not (await prepare(driver, other)).error
            forced = await asyncio.to_thread(release, state, "default/two", "--force")
            assert forced.returncode == 0 and f"released {GPU}" in forced.stdout

    asyncio.run(scenario())
