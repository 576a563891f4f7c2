"""A real agent process between a fake kubelet and a fake API server: claim status, Events and metadata."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import FakeKubelet

from .conftest import AgentProcess, Start

DRIVER = "dra-agent.internal"


@pytest.fixture
def agent(fake_api: FakeApi, start: Start, tmp_path: Path, kubelet_dir: Path) -> Callable[..., AgentProcess]:
    """Start the agent in Kubernetes mode."""

    def run(*flags: str) -> AgentProcess:
        kubeconfig = fake_api.kubeconfig(tmp_path / "kubeconfig")
        agent = start("--no-standalone", "--kubeconfig", str(kubeconfig), "--kubelet-dir", str(kubelet_dir), *flags)
        return agent.ready()

    return run


def make_claim(api: FakeApi, name: str, device: str, **annotations: str) -> tuple[str, str, str]:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": device}]
    claim = api.put(
        "resourceclaims",
        {
            "metadata": {"name": name, "namespace": "team-a", "annotations": annotations},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}},
        },
    )
    return "team-a", name, claim["metadata"]["uid"]


def call(kubelet_dir: Path, method: str, *claims: tuple[str, str, str]) -> dict[str, Any]:
    """Call as the kubelet does, and return the responses by uid."""

    async def main() -> dict[str, Any]:
        kubelet = FakeKubelet(kubelet_dir)
        try:
            driver = await kubelet.driver()
            response = await driver.call(method, claims)
            return dict(response.claims)
        finally:
            await kubelet.close()

    return asyncio.run(main())


def gpu(tmp_path: Path) -> str:
    import dra_simulate
    from dra_agent.inventory.collector import collect
    from dra_agent.topology import scan

    host = dra_simulate.build("vm-1gpu", tmp_path / "looked-at")
    return next(device.name for device in collect(host, scan(host)).devices if device.family == "gpu")


def test_status_shows_prepared_devices_and_events_refused_claims(
    fake_api: FakeApi, agent: Callable[..., AgentProcess], kubelet_dir: Path, tmp_path: Path
) -> None:
    device = gpu(tmp_path)
    process = agent("--device-metadata", "--claim-status", "all", "--metrics-address", "127.0.0.1:0")
    first = make_claim(fake_api, "first", device, **{"resource.kubernetes.io/pod-claim-name": "my-gpu"})
    second = make_claim(fake_api, "second", device)
    responses = call(kubelet_dir, "prepare", first, second)
    assert sorted(bool(response.error) for response in responses.values()) == [False, True]
    winner, loser = (first, second) if not responses[first[2]].error else (second, first)

    def status(name: str) -> Any:
        return fake_api.store.get("resourceclaims", "team-a", name)["status"].get("devices")

    (entry,) = eventually(lambda: status(winner[1]))
    assert entry["device"] == device and entry["conditions"][0]["status"] == "True"
    assert entry["data"]["uuid"].startswith("GPU-") and entry["data"]["productName"]
    (event,) = eventually(lambda: fake_api.objects("events"))
    assert event["reason"] == "DeviceHeld" and event["regarding"]["uid"] == loser[2]
    # The reader of the Event may not know the other claim; the host's administrator does.
    for text in (event["note"], responses[loser[2]].error):
        assert f"device {device} of pool" in text and "is held by another claim" in text
        assert not {winner[1], winner[2]} & set(re.split(r"[\s/()]", text))
    assert f"is held by claim team-a/{winner[1]}" in process.log_text()
    assert not status(loser[1])

    (file,) = (kubelet_dir / "plugins" / DRIVER / "dra-device-metadata").rglob("*.json")
    assert file.parent.name == winner[2]
    assert json.loads(file.read_text())["requests"][0]["devices"][0]["name"] == device
    (spec,) = (tmp_path / "cdi").glob("*.json")
    name = "resourceclaimtemplates/my-gpu" if winner is first else "resourceclaims/second"
    assert f"/var/run/kubernetes.io/dra-device-attributes/{name}/gpu/{DRIVER}-metadata.json" in spec.read_text()

    # The server has both before the agent receives the responses.
    expected = {
        "dra_agent_events_written_total 1.0",
        "dra_agent_claim_status_writes_total 1.0",
        "dra_agent_claim_status_waiting 0.0",
        "dra_agent_events_lost_total 0.0",
    }
    eventually(lambda: expected <= set(process.get("/metrics")[1].splitlines()), lambda: process.get("/metrics")[1])

    # A restart writes nothing again.
    before = fake_api.store.get("resourceclaims", "team-a", winner[1])
    assert process.end() == 0
    reads = [request for request in fake_api.requests if not request.write and winner[1] in request.path]
    process = agent("--device-metadata", "--claim-status", "all")
    eventually(lambda: len([one for one in fake_api.requests if not one.write and winner[1] in one.path]) > len(reads))
    assert fake_api.store.get("resourceclaims", "team-a", winner[1]) == before

    assert not call(kubelet_dir, "unprepare", winner)[winner[2]].error
    assert not file.exists() and not spec.exists()
    assert process.end() == 0
    assert "Traceback" not in process.log_text()


def test_claim_status_can_be_disabled(
    fake_api: FakeApi, agent: Callable[..., AgentProcess], kubelet_dir: Path, tmp_path: Path
) -> None:
    process = agent("--no-claim-status", "--metrics-address", "127.0.0.1:0")
    # The Event of the second claim is written later than a status would be (claim_status.DEBOUNCE_S).
    fake_api.fail(503, path="/events", retry_after=2)
    device = gpu(tmp_path)
    claims = make_claim(fake_api, "first", device), make_claim(fake_api, "second", device)
    responses = call(kubelet_dir, "prepare", *claims)
    assert sorted(bool(response.error) for response in responses.values()) == [False, True]
    eventually(lambda: fake_api.objects("events"))
    metrics = process.get("/metrics")[1]
    assert "dra_agent_events_written" in metrics and "dra_agent_claim_status" not in metrics
    assert not (kubelet_dir / "plugins" / DRIVER / "dra-device-metadata").exists()
    assert process.end() == 0
    assert not [request for request in fake_api.requests if request.write and "resourceclaims" in request.path]


def test_a_refused_slice_is_reported_by_an_event_on_the_node(
    fake_api: FakeApi, agent: Callable[..., AgentProcess]
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    fake_api.fail(403, methods="POST", path="/resourceslices", times=None)
    process = agent()
    (event,) = eventually(lambda: fake_api.objects("events"))
    assert event["reason"] == "SlicesRefused" and event["regarding"]["name"] == "node-a"
    assert process.end() == 0


def test_dropped_fields_are_reported_by_an_event_on_the_node(
    fake_api: FakeApi, agent: Callable[..., AgentProcess]
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})

    def drop(plural: str, written: dict[str, Any]) -> None:
        for device in written.get("spec", {}).get("devices", ()) if plural == "resourceslices" else ():
            device.get("attributes", {}).pop("productName", None)

    fake_api.drop_fields(drop)
    process = agent()
    events = eventually(lambda: fake_api.objects("events"))
    assert {event["reason"] for event in events} == {"FieldsDropped"} and "productName" in events[0]["note"]
    assert process.end() == 0
