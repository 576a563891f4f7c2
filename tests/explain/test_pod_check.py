"""A pod from a file that the API server refuses for its claims or extended resources is refused, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main

Json = dict[str, Any]
CLAIM = {"name": "gpu", "resourceClaimName": "mine"}
GPU = "example.com/gpu"


def container(*claims: Any, **resources: Any) -> Json:
    return {"name": "c", "resources": {"claims": list(claims), **resources}}


def spec(*claims: Json, containers: list[Json] | None = None, **more: Any) -> Json:
    return {"containers": [container()] if containers is None else containers, "resourceClaims": list(claims), **more}


def pod(body: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": body}


INVALID: dict[str, tuple[Json, str, str]] = {
    "the reference of v1alpha2": (
        spec({"name": "gpu", "source": {"resourceClaimName": "mine"}}),
        "spec.resourceClaims[0].source is not a field, as it was before Kubernetes 1.31",
        "set one of resourceClaimName and resourceClaimTemplateName in resourceClaims[0]",
    ),
    "no reference": (spec({"name": "gpu"}), "resourceClaims[0] names neither", "set one of resourceClaimName"),
    "two references": (
        spec({**CLAIM, "resourceClaimTemplateName": "t"}),
        "resourceClaims[0] names both",
        "set one of resourceClaimName",
    ),
    "a misspelled reference": (
        spec({"name": "gpu", "resourceClaimTemplate": "t"}),
        "resourceClaims[0].resourceClaimTemplate is not a field",
        "set one of",
    ),
    "one name twice": (spec(CLAIM, CLAIM), "resourceClaims[1].name gpu is used twice", "its own name"),
    "a name that is not a label": (spec({**CLAIM, "name": "My_GPU"}), "'My_GPU' is not lowercase", "pod's own"),
    "an unknown claim in a container": (
        spec(CLAIM, containers=[container({"name": "other"})]),
        "containers[0].resources.claims[0].name other is not the name of an entry of spec.resourceClaims",
        "they are gpu",
    ),
    "a claim twice in a container": (
        spec(CLAIM, containers=[container({"name": "gpu"}, {"name": "gpu", "request": "a"})]),
        "containers[0].resources.claims[1] claim gpu is named twice",
        "name it once",
    ),
    "a claim in an init container": (
        spec(CLAIM, initContainers=[container("gpu")]),
        "initContainers[0].resources.claims[0] is not an object",
        "name an entry",
    ),
    "a misspelled list": (
        {"containers": [container()], "resourceClaim": [CLAIM]},
        "spec.resourceClaim is not a field of a pod",
        "spec.resourceClaims of the pod",
    ),
    "the list of the pod in a container": (
        spec(containers=[{"name": "c", "resourceClaims": [CLAIM]}]),
        "containers[0].resourceClaims is not a field of a container",
        "resources.claims of its containers",
    ),
    "another list of resources": (
        spec(containers=[container(claim=[])]),
        "containers[0].resources.claim is not a field",
        "limits, requests and claims",
    ),
    "a request that is not the limit": (
        spec(containers=[container(requests={GPU: "1"}, limits={GPU: "2"})]),
        f"containers[0].resources.requests.{GPU} 1 is not equal to the limit 2",
        "one number",
    ),
    "a request without a limit": (
        spec(containers=[container(requests={GPU: 1})]),
        f"containers[0].resources.requests.{GPU} 1 is not equal to a limit, which is missing",
        "one number",
    ),
    "a fraction": (
        spec(containers=[container(limits={GPU: "500m"})]),
        f"containers[0].resources.limits.{GPU} 500m is not a whole number",
        "not divided",
    ),
}


def explained(value: Json, command: str = "explain") -> int:
    Path("pod.yaml").write_text(json.dumps(value, indent=1))
    Path("cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": []}))
    return main([command, "-f", "pod.yaml", "--from", "cluster.json"])


@pytest.mark.parametrize("name", INVALID)
def test_a_pod_that_the_api_server_refuses_is_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    body, message, hint = INVALID[name]
    for command in ("explain", "capacity"):
        assert explained(pod(body), command) == 2
        error = capsys.readouterr().err
        assert error.startswith("dra-agent: pod.yaml:") and message in error and hint in error


def test_the_field_of_a_template_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    body = spec({"name": "gpu"})
    job = {"spec": {"template": {"spec": body}}}
    head = {"metadata": {"name": "w", "namespace": "default"}}
    workloads = {
        "spec.template.spec": {"apiVersion": "apps/v1", "kind": "Deployment", **head, **job},
        "spec.replicatedJobs[0].template.spec.template.spec": {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            **head,
            "spec": {"replicatedJobs": [{"name": "a", "template": job}]},
        },
        "spec.podSets[0].template.spec": {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            **head,
            "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": body}}]},
        },
    }
    for path, value in workloads.items():
        assert explained(value) == 2
        assert f"{path}.resourceClaims[0] names neither a claim nor a template" in capsys.readouterr().err


def test_a_valid_pod_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    claims = [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]
    limits = {GPU: "1", "cpu": "500m"}
    both = container(*claims, limits=limits, requests={GPU: 1, "cpu": "0.2"})
    assert explained(pod(spec(CLAIM, containers=[both], initContainers=[container({"name": "gpu"})]))) == 1
    assert "there is no claim default/mine" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "capacity"])
def test_another_kind_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "rc"}, "spec": {}}
    assert explained(cluster, command) == 2
    error = capsys.readouterr().err
    assert "pod.yaml:3: a RayCluster cannot be" in error and "Deployment" in error and "--slices" not in error
