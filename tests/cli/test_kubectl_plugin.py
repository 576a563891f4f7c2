"""`kubectl dra` against an API server, on a machine without an agent."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim, device, make_request, model, slice_of
from dra_agent import revision
from dra_agent.cli.parser import leaves
from dra_cluster.cli.kubectl_plugin import build_parser, main
from eventually import DEADLINE_S
from fake_apiserver.fake import FakeApi

Plugin = Callable[..., tuple[int, str, str]]
DRIVER = "dra-agent.internal"


@pytest.fixture
def plugin(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Plugin:
    for name in [name for name in os.environ if name.startswith(("DRA_AGENT_", "KUBE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(fake_api.kubeconfig(tmp_path / "kubeconfig")))
    # A configuration of an agent, as on a node, is not used.
    monkeypatch.setenv("DRA_AGENT_CONFIG", str(tmp_path / "missing.toml"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def gpu(name: str, numa: int, root: str, **more: Any) -> dict[str, Any]:
    attributes = {
        "resource.kubernetes.io/numaNode": {"int": numa},
        "resource.kubernetes.io/pcieRoot": {"string": root},
        "productName": {"string": "H100"},
    }
    return {"name": name, "attributes": attributes, **more}


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """Two nodes of which one is being reclaimed; a pod uses a GPU of it, and another waits."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
    notice = {
        "type": f"{DRIVER}/ReclaimNotice",
        "status": "True",
        "message": "the node is reclaimed soon",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    taint = {"key": f"{DRIVER}/reclaim", "effect": "NoExecute", "value": "notice"}
    fake_api.put("nodes", {"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [notice]}})
    fake_api.put("nodes", {"metadata": {"name": "n2"}, "spec": {}})
    tainted = [gpu("gpu-b", 1, "pci0000:80", taints=[taint]), gpu("gpu-a", 0, "pci0000:00", taints=[taint])]
    for name, generation, devices in (("new", 2, tainted), ("old", 1, [gpu("gpu-gone", 0, "pci0000:00")])):
        entry = slice_of(*devices, name=name, pool="n1", nodeName="n1")
        entry["spec"]["driver"] = DRIVER
        entry["spec"]["pool"]["generation"] = generation
        fake_api.put("resourceslices", entry)
    fake_api.put("resourceslices", slice_of(device("gpu-x", {"model": "A"}), name="n2", pool="n2", nodeName="n2"))
    held = claim(make_request(), name="train")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    held["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-a"}]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        },
        "reservedFor": [{"resource": "pods", "name": "train-0", "uid": "u"}],
    }
    fake_api.put("resourceclaims", held)
    fake_api.put("resourceclaims", claim(make_request(expression=model("C")), name="late"))
    pod = {
        "metadata": {"name": "job", "namespace": "default", "uid": "uid-job"},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "g", "resourceClaimName": "late"}]},
        "status": {"phase": "Pending"},
    }
    fake_api.put("pods", pod)
    return fake_api


def test_claims_are_listed_with_their_pods(cluster: FakeApi, plugin: Plugin) -> None:
    code, text, _ = plugin("claims")
    assert code == 0 and re.search(r"n1 +gpu-a .*default/train .*pod train-0", text)
    assert json.loads(plugin("claims", "-A", "--node", "n2", "-o", "json")[1]) == []
    assert json.loads(plugin("claims", "-n", "other", "-o", "json")[1]) == []
    assert {request.method for request in cluster.requests} == {"GET"}


@pytest.mark.parametrize("words", [("job",), ("pod/job",), ("po", "job"), ("pod/default/job",), ("claim/late",)])
def test_pods_and_claims_are_explained(cluster: FakeApi, plugin: Plugin, words: tuple[str, ...]) -> None:
    code, text, _ = plugin("explain", *words)
    assert code == 1 and "default/" in text and "none of 1 device matches" in text
    assert plugin("explain", *words, "-o", "name")[:2] == (1, ""), "no node has its devices"


def test_copies_of_a_pod_and_a_claim_are_counted(cluster: FakeApi, plugin: Plugin) -> None:
    template = {"metadata": {"name": "any", "namespace": "default"}}
    cluster.put("resourceclaimtemplates", {**template, "spec": {"spec": claim(make_request())["spec"]}})
    code, text, _ = plugin("capacity", "template/any", "-o", "json")
    found = json.loads(text)
    assert code == 0 and {row["node"]: row["copies"] for row in found["nodes"]} == {"n1": 0, "n2": 1}
    assert [row["causes"] for row in found["nodes"]] == [["in_use", "taint"], ["placed"]]
    changes = ("--if", "delete-claim=default/train", "--if", f"untaint={DRIVER}/reclaim")
    assert json.loads(plugin("capacity", "template/any", *changes, "-o", "json")[1])["total"] == 3
    for words in (("pod/job",), ("job",)):
        code, text, _ = plugin("capacity", *words)
        assert code == 1 and text.startswith("pod default/job: fits nowhere; node n1: an error")
    code, _, error = plugin("capacity", "pod/absent")
    assert code == 2 and "there is no pod absent in namespace default" in error
    assert {request.method for request in cluster.requests} == {"GET"}


def test_reclaims_name_the_claims_and_pods_that_they_affect(cluster: FakeApi, plugin: Plugin) -> None:
    code, text, _ = plugin("reclaim", "status")
    assert code == 0
    assert re.search(r"n1 +notice +2026\S+ +1 +default/train-0 +the node is reclaimed soon", text)
    (row,) = json.loads(plugin("reclaim", "status", "n1", "-o", "json")[1])
    assert (row["phase"], row["claims"]) == ("notice", ["default/train"])
    assert plugin("reclaim", "status", "node/n2")[1] == "node n2 is not being reclaimed\n"
    assert plugin("reclaim", "status", "-o", "name")[1] == "n1\n"
    assert plugin("reclaim", "status", "n2", "-o", "name")[1] == ""


def test_topology_shows_the_newest_devices_of_a_node_and_their_claims(cluster: FakeApi, plugin: Plugin) -> None:
    code, text, _ = plugin("topology", "no/n1")
    assert code == 0 and text.splitlines() == [
        "node n1: 2 devices published",
        "NUMA node 0",
        "  pci0000:00",
        f"    gpu-a   H100   {DRIVER}/reclaim:NoExecute, held by default/train",
        "NUMA node 1",
        "  pci0000:80",
        f"    gpu-b   H100   {DRIVER}/reclaim:NoExecute",
    ]
    assert plugin("topology", "n1", "-o", "name")[1] == "gpu-a\ngpu-b\n"
    code, _, errors = plugin("topology", "n3")
    assert code == 2 and "there is no node n3; `kubectl get nodes` lists them" in errors


def test_contexts_and_several_kubeconfigs_are_chosen_as_by_kubectl(
    cluster: FakeApi, plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = plugin("claims", "--context", "nope")
    assert code == 2 and "the kubeconfig has no context 'nope'; its contexts are " in errors
    name = errors.rpartition("its contexts are ")[2].strip()
    (tmp_path / "other").write_text("apiVersion: v1\nkind: Config\n")
    files = [tmp_path / "missing", tmp_path / "other", tmp_path / "kubeconfig"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert plugin("claims", "--context", name)[0] == 0


def test_without_a_cluster_the_error_names_the_flag(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG")
    code, _, errors = plugin("claims")
    assert code == 2 and "--kubeconfig FILE" in errors and "--standalone" not in errors


@pytest.mark.parametrize("words", [(), ("reclaim",)])
def test_a_missing_command_prints_the_help_with_examples(plugin: Plugin, words: tuple[str, ...]) -> None:
    code, text, errors = plugin(*words)
    assert (code, text) == (2, "")
    found = re.findall(r"^  kubectl dra (.*)$", errors, re.MULTILINE)
    assert found and all(build_parser().parse_args(shlex.split(line)) for line in found)


@pytest.mark.parametrize("command", [" ".join(words) for words, _ in leaves(build_parser())])
def test_every_command_has_examples_that_parse(command: str) -> None:
    parser = {" ".join(words): parser for words, parser in leaves(build_parser())}[command]
    found = re.findall(r"^  kubectl dra (.*)$", parser.epilog or "", re.MULTILINE)
    assert found and all(build_parser().parse_args(shlex.split(line)) for line in found)


def complete(*words: str) -> list[str]:
    """The output for kubectl, of a process of its own: argcomplete takes a file descriptor of its process."""
    program = Path(sys.executable).with_name("kubectl-dra")
    result = subprocess.run([program, "__complete", *words], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("top", "--so"), ["--sort", ":4"]),
        (("rec",), ["reclaim", ":4"]),
        (("claims", "-o", "js"), ["json", ":4"]),
        (("claims", "--kubeconfig", ""), [":0"]),
        (("claims", "-n", ""), [":4"]),
        (("explain", ""), [":4"]),
    ],
)
def test_kubectl_completes_words(words: tuple[str, ...], expected: list[str]) -> None:
    assert [line.partition("\t")[0] for line in complete(*words)] == expected


def test_every_command_of_the_plugin_is_completed_with_its_summary() -> None:
    *lines, directive = complete("")
    assert directive == ":4"
    assert lines == [f"{name}\t{summary}" for name, summary in build_parser().summaries.items()]


def test_the_version_has_the_revision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kubectl-dra {revision.describe()}\n"
