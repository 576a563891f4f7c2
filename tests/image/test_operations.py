"""The commands that the pages give operators, with the built image: in the pod, by kubectl dra, and with helm."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import NAMESPACES, PODS, SLICES
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request

from .conftest import Image
from .release import HOME, RELEASE, Release, installed

POD_COMMAND = ("exec", "-n", HOME, f"daemonset/{RELEASE}", "--", "dra-agent")
"""The name of a pod differs in each run."""


@pytest.fixture(scope="module")
def release(cluster: Cluster, debug: Image, chart: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with installed(cluster, debug, chart, tmp_path_factory.mktemp("helm")) as found:
        yield found


@pytest.fixture
def user(release: Release) -> Iterator[Namespace]:
    """A namespace with a pod `user`, which runs with the claim `one`."""
    namespace = Namespace(release.cluster, "operations")
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one", node=release.node.name)
    namespace.running("user")
    yield namespace
    namespace.remove()
    api = release.cluster.api
    api.wait(lambda: not api.find(NAMESPACES, namespace.name), "the namespace is gone")


def kubectl(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run kubectl with the plugin of this checkout on PATH."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "KUBECACHEDIR": str(cluster.directory / "kubectl"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [str(cluster.programs / "kubectl"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=900)


def test_commands_in_the_pod_show_the_node(release: Release, user: Namespace) -> None:
    (device,) = [result["device"] for result in user.results("one")]
    holders = kubectl(release.cluster, *POD_COMMAND, "claim", "holders", "-o", "json")
    assert holders.returncode == 0, holders.stderr.decode()
    held = [(one["device"], one["namespace"], one["claim"]) for one in json.loads(holders.stdout)]
    assert held == [(device, user.name, "one")]
    doctor = kubectl(release.cluster, *POD_COMMAND, "doctor", "-o", "json")
    problems = [one for one in json.loads(doctor.stdout)["findings"] if one["severity"] == "problem"]
    assert problems == [], doctor.stderr.decode()


def test_a_pod_writes_a_support_bundle_to_standard_output(release: Release, user: Namespace) -> None:
    done = kubectl(release.cluster, *POD_COMMAND, "doctor", "--bundle", "-")
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive if member.isfile()}
        manifest, ledger = (json.load(files[name]) for name in ("MANIFEST.json", "ledger.json"))  # type: ignore[arg-type]
    # UIDs are replaced, as the identity of the host is.
    assert [(claim["namespace"], claim["name"], claim["state"]) for claim in ledger["claims"]] == [
        (user.name, "one", "completed")
    ]
    assert user.get_claim("one")["metadata"]["uid"] not in json.dumps(ledger)
    assert ledger["report"]["earlier_boot"] == []
    # The image has neither journalctl nor the tools of vendors, and the part `claims` is that of standalone mode. All
    # others can be read in a pod.
    omitted = [one for one in manifest["omitted"] if (one["part"], one["reason"]) != ("recording", "not installed")]
    assert {one["part"] for one in omitted} <= {"claims", "journal", "kernel", "metrics"}, manifest["omitted"]


def test_the_agents_account_cannot_explain_a_pod_and_the_command_names_the_permission(
    release: Release, user: Namespace
) -> None:
    done = kubectl(release.cluster, *POD_COMMAND, "explain", "pod", "user", "-n", user.name)
    assert done.returncode == 1
    assert b"cannot list pods in namespace operations" in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(
    shutil.which("kubectl-dra", path=str(Path(sys.executable).parent)) is None, reason="no `make build`"
)
def test_the_plugin_shows_claims_and_nodes(release: Release, user: Namespace) -> None:
    (device,) = [result["device"] for result in user.results("one")]

    def printed(*arguments: str) -> str:
        done = kubectl(release.cluster, "dra", *arguments)
        assert done.returncode == 0, f"kubectl dra {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()

    assert {device, "operations/one"} <= set(printed("claims", "-A").split())
    assert "operations/user" in printed("explain", "pod/user", "-n", user.name)
    assert device in printed("topology", release.node.name)
    assert release.node.name in printed("capacity", "claim/one", "-n", user.name)
    assert printed("reclaim", "status")


def test_an_upgrade_and_a_rollback_keep_the_claim(release: Release, user: Namespace) -> None:
    """The command of docs/how-to/operate/lifecycle.md, with another tag of the same image."""
    cluster, helm = release.cluster, release.helm
    repository, _, tag = release.image.name.rpartition(":")
    release.node.ctr("images", "tag", "--force", release.image.name, f"{repository}:next")
    (agent,) = cluster.api.list(PODS, HOME)
    slices = versions_of_slices(cluster)
    (result,) = user.results("one")
    helm.run("upgrade", RELEASE, str(release.chart), "--reset-then-reuse-values", "--set", "image.tag=next")
    release.wait_for_rollout()
    cluster.api.wait(lambda: images(cluster) == [f"{repository}:next"], "the old agent has ended")
    assert user.results("one") == [result]
    assert user.running("user")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert versions_of_slices(cluster) == slices, "an update writes no slice"
    holders = json.loads(kubectl(cluster, *POD_COMMAND, "claim", "holders", "-o", "json").stdout)
    assert [one["device"] for one in holders] == [result["device"]]
    helm.run("rollback", RELEASE)
    release.wait_for_rollout()
    cluster.api.wait(lambda: images(cluster) == [f"{repository}:{tag}"], "the new agent has ended")
    assert agent["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in cluster.api.list(PODS, HOME)}
    assert versions_of_slices(cluster) == slices
    # The agent that is back releases what the other one prepared.
    user.delete_pod("user")
    user.wait_until_deleted("user")


def images(cluster: Cluster) -> list[str]:
    return [pod["spec"]["containers"][0]["image"] for pod in cluster.api.list(PODS, HOME)]


def versions_of_slices(cluster: Cluster) -> dict[str, str]:
    found = cluster.api.list(SLICES, fields={"spec.driver": DRIVER})
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found}
