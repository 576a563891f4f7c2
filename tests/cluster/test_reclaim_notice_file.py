"""Containers on a real kubelet and containerd read the notice of a reclaim, also after the agent was killed."""

from __future__ import annotations

import json

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER
from cluster.kube.api import Object
from cluster.kube.workload import Namespace, container, request
from dra_agent.reclaim.control import Cancel, Start, send_request

CONFIG = {"opaque": {"driver": DRIVER, "parameters": {"apiVersion": f"{DRIVER}/v1", "kind": "ReclaimNoticeConfig"}}}
TOLERATION = {"key": f"{DRIVER}/reclaim", "operator": "Exists", "effect": "NoExecute"}


def read(namespace: Namespace, name: str) -> Object:
    document: Object = json.loads(namespace.execute("job", "cat $DRA_AGENT_NOTICE_DIR/notice.json", name))
    return document


def wait_for_phase(namespace: Namespace, phase: str) -> Object:
    """Wait until both containers read the phase; return the document."""
    documents: list[Object] = []

    def read_by_both() -> bool:
        documents[:] = [read(namespace, name) for name in ("first", "second")]
        return all(document["phase"] == phase for document in documents)

    namespace.api.wait(read_by_both, f"both containers read the phase {phase}")
    assert documents[0] == documents[1]
    return documents[0]


def test_running_containers_read_hint_and_notice(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100")
    notices = agent.node.kubelet_dir / "plugins" / DRIVER / "notices"
    # The first container has two devices of the claim, and a claim without the file.
    requests = [request(name, "gpu", tolerations=[TOLERATION]) for name in ("one", "two")]
    namespace.template("with-notice", *requests, config=[CONFIG])
    namespace.template("without", request("gpu", "gpu", tolerations=[TOLERATION]))
    claims = [{"name": "c", "resourceClaimTemplateName": "with-notice"}]
    claims.append({"name": "other", "resourceClaimTemplateName": "without"})
    containers = [container("first", "c", "other"), container("second", ("c", "two"))]
    job = namespace.pod("job", claims=claims, containers=containers, node="node-a")
    namespace.running("job")
    uid = namespace.claim_of("job", "c")["metadata"]["uid"]
    assert [path.name for path in notices.iterdir()] == [uid]
    assert wait_for_phase(namespace, "none")["sequence"] == 1
    path = f"/run/dra-agent/notice/{uid}"
    assert namespace.execute("job", "echo $DRA_AGENT_NOTICE_DIR", "first").strip() == path
    written = namespace.execute("job", f"(echo x > {path}/notice.json) 2>&1 || true", "first")
    assert "Read-only file system" in written

    send_request(agent.state_dir, Start("hint", None, "a test"))
    assert wait_for_phase(namespace, "hint")["advice"] == ["checkpoint"]
    agent.kill()
    assert read(namespace, "first")["phase"] == "hint"
    agent.start().ready()
    send_request(agent.state_dir, Start("notice", 600.0, "a test"))
    document = wait_for_phase(namespace, "notice")
    assert document["source"] == "operator" and document["deadline"].endswith("Z")
    agent.kill()
    agent.start().ready()
    assert read(namespace, "second") == document
    assert agent.metrics()["dra_agent_reclaim_notice_files_failed_total"] == 0
    send_request(agent.state_dir, Cancel())
    assert wait_for_phase(namespace, "cancelled")["advice"] == ["continue"]
    assert namespace.running("job")["metadata"]["uid"] == job["metadata"]["uid"]
    namespace.delete_pod("job")
    namespace.wait_until_deleted("job")
    assert list(notices.iterdir()) == []
