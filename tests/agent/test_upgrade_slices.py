"""Slices that an earlier version has published are adopted: the agent adds what is new once, and writes no more."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from agent.conftest import AgentProcess, Start
from agent.test_upgrade import EARLIER
from eventually import eventually
from fake_apiserver.fake import FakeApi

HOST = ("--simulate", "dgx-h100", "--node-name", "vm")
NODE = {
    "metadata": {"name": "vm", "uid": "7d0c2a3e-6d5e-4c1f-9a57-0f3f5e0d9b11"},
    "status": {"capacity": {}},
}
"""The owner of the recorded slices."""
NEW = {"interconnectGroup", "interconnectWidth", "ibSubnetPrefix", "ibPortGUID", "integrated"}
"""Attributes that the earlier version does not publish."""


def recorded_slices() -> list[dict[str, Any]]:
    """Return what an agent of commit 3e98ba5 published for the host."""
    slices: list[dict[str, Any]] = json.loads(lzma.decompress((EARLIER / "slices-3e98ba5.json.xz").read_bytes()))
    return slices


def connection(api: FakeApi, folder: Path, kubelet_dir: Path) -> tuple[str, ...]:
    """Return the flags of an agent in Kubernetes mode."""
    credentials = api.kubeconfig(folder / "kubeconfig")
    flags = ("--kubelet-dir", str(kubelet_dir), "--kubeconfig", str(credentials))
    return (*flags, "--metrics-address", "127.0.0.1:0")


def are_published(agent: AgentProcess) -> bool:
    """Return whether the slices of the API server are those that the agent wants."""
    metrics = agent.get("/metrics")[1]
    return "dra_agent_publish_pending_pools 0.0" in metrics and "dra_agent_publish_slices 0.0" not in metrics


def slice_writes(api: FakeApi) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in api.writes() if "resourceslices" in request.path]


def updates(slices: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the requests that change each of the slices once and in place."""
    return sorted(("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}") for one in slices)


def specs(slices: list[dict[str, Any]], *, without: set[str]) -> dict[str, dict[str, Any]]:
    """Return the specs by the names of the slices, without some attributes of devices."""
    return {
        one["metadata"]["name"]: {
            **one["spec"],
            "devices": [
                {
                    **device,
                    "attributes": {key: device["attributes"][key] for key in device["attributes"].keys() - without},
                }
                for device in one["spec"]["devices"]
            ],
        }
        for one in slices
    }


def test_recorded_slices_get_what_is_new_once_and_nothing_else_changes(
    start: Start, fake_api: FakeApi, tmp_path: Path, kubelet_dir: Path
) -> None:
    fake_api.put("nodes", NODE)
    recorded = recorded_slices()
    for one in recorded:
        fake_api.put("resourceslices", one)
    flags = ("--no-standalone", *HOST, *connection(fake_api, tmp_path, kubelet_dir))

    def run() -> None:
        agent = start(*flags).ready()
        eventually(lambda: are_published(agent), agent.log_text)
        assert f"dra_agent_publish_slices {len(recorded)}.0" in agent.get("/metrics")[1]
        assert agent.end() == 0

    run()
    assert sorted(slice_writes(fake_api)) == updates(recorded)
    run()
    assert sorted(slice_writes(fake_api)) == updates(recorded), "the second start writes none"
    now = fake_api.objects("resourceslices")
    assert specs(now, without=NEW) == specs(recorded, without=set())
    devices = [device for one in now for device in one["spec"]["devices"]]
    assert {name for device in devices for name in device["attributes"]} >= NEW
