"""Device metadata files as containers on a real kubelet and containerd see them."""

from __future__ import annotations

import json

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER
from cluster.kube.api import Object
from cluster.kube.workload import Namespace, container, request

BASE = "/var/run/kubernetes.io/dra-device-attributes"
END = "/tmp/end"
"""A file in the container's own layer, so that its successor does not have it."""


def read(namespace: Namespace, pod: str, path: str, name: str | None = None) -> Object:
    document: Object = json.loads(namespace.execute(pod, f"cat {BASE}/{path}/{DRIVER}-metadata.json", name))
    return document


def test_container_reads_the_metadata_of_its_devices(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--device-metadata")
    namespace.claim("named", request("gpu", "gpu", count=2), request("nic", "rdma-nic"))
    namespace.template("made", request("gpu", "gpu"))
    containers = [container("gpus", ("n", "gpu"), "t"), container("nics", ("n", "nic"))]
    claims = [{"name": "n", "resourceClaimName": "named"}, {"name": "t", "resourceClaimTemplateName": "made"}]
    namespace.pod("user", claims=claims, containers=containers, node="node-a")
    namespace.running("user")

    document = read(namespace, "user", "resourceclaims/named/gpu", "gpus")
    claim = namespace.get_claim("named")
    assert document["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    assert document["metadata"]["uid"] == claim["metadata"]["uid"]
    (metadata,) = document["requests"]
    held = [result["device"] for result in namespace.results("named") if result["request"] == "gpu"]
    assert [device["name"] for device in metadata["devices"]] == held
    for device in metadata["devices"]:
        assert device["attributes"] == agent.devices()[device["name"]]["attributes"]

    claim_of_template = namespace.claim_of("user", "t")
    document = read(namespace, "user", "resourceclaimtemplates/t/gpu", "gpus")
    assert document["podClaimName"] == "t" and document["metadata"]["name"] == claim_of_template["metadata"]["name"]

    document = read(namespace, "user", "resourceclaims/named/nic", "nics")
    assert document["requests"][0]["devices"][0]["networkData"]["interfaceName"]
    # Each container sees the requests that it uses, read-only.
    assert namespace.execute("user", f"ls {BASE}/resourceclaims/named", "nics").split() == ["nic"]
    assert namespace.execute("user", f"ls {BASE}/resourceclaims/named", "gpus").split() == ["gpu"]
    file = f"{BASE}/resourceclaims/named/gpu/{DRIVER}-metadata.json"
    assert namespace.execute("user", f"echo x > {file} || echo refused", "gpus").strip() == "refused"

    directory = agent.node.kubelet_dir / "plugins" / DRIVER / "dra-device-metadata"
    assert {path.name for path in directory.iterdir()} == {
        claim["metadata"]["uid"],
        claim_of_template["metadata"]["uid"],
    }
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    assert list(directory.iterdir()) == []


def test_metadata_can_be_enabled_while_a_pod_runs(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100")
    namespace.claim("mine", request("gpu", "gpu"))
    until_end_file = f"trap 'exit 0' TERM; while [ ! -e {END} ]; do sleep 0.2; done"
    containers = [container("main", "c"), container("again", "c", command=until_end_file)]
    claims = [{"name": "c", "resourceClaimName": "mine"}]
    namespace.pod("user", claims=claims, containers=containers, restartPolicy="Always", node="node-a")
    namespace.running("user")
    assert "dra-device-attributes" not in namespace.execute("user", "ls /var/run/kubernetes.io 2>&1 || true", "again")
    agent.end()
    start_agent("node-a", "dgx-h100", "--device-metadata")
    namespace.execute("user", f"touch {END}", "again")

    def sees() -> bool:
        found = namespace.execute("user", f"ls {BASE}/resourceclaims/mine/gpu 2>/dev/null || true", "again")
        return f"{DRIVER}-metadata.json" in found

    # The container restarts in the same pod, with the CDI ids that the kubelet stored.
    def restarted_and_sees() -> bool:
        statuses = namespace.get_pod("user")["status"]["containerStatuses"]
        again = next(status for status in statuses if status["name"] == "again")
        return bool(again["restartCount"] and again["state"].get("running")) and sees()

    namespace.api.wait(restarted_and_sees, "the restarted container sees its metadata")
