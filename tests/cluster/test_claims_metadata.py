"""Device metadata files in the container, at the paths that Kubernetes defines."""

from __future__ import annotations

from cluster.conftest import StartAgent
from cluster.kube.workload import Namespace, request

FILES = "/var/run/kubernetes.io/dra-device-attributes"


def test_device_metadata_files_are_in_the_container(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", "dgx-h100", "--device-metadata")
    namespace.claim("named", request("gpu", "gpu"))
    namespace.template("made", request("gpu", "gpu"))
    paths = {
        "named": f"{FILES}/resourceclaims/named/gpu/dra-agent.internal-metadata.json",
        "made": f"{FILES}/resourceclaimtemplates/devices/gpu/dra-agent.internal-metadata.json",
    }
    namespace.pod("named", claim="named", node="node-a")
    namespace.pod("made", template="made", node="node-a")
    namespace.running("named", "made")
    for pod, path in paths.items():
        claim = namespace.claim_of(pod)
        (result,) = namespace.results(claim)
        content = namespace.execute(pod, f"cat {path}")
        uuid = agent.devices()[result["device"]]["attributes"]["uuid"]["string"]
        for expected in ("metadata.resource.k8s.io/v1beta1", result["device"], uuid, claim["metadata"]["uid"]):
            assert expected in content
        assert " ro," in namespace.execute(pod, f"grep {path} /proc/self/mounts")
