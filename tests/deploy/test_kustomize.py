"""The kustomize base equals the chart with default values, and the example overlay renames every reference."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import BASE, CHART, ROOT, Objects, Render, objects_by_name, only_object

NOT_GENERATED = ("kustomization.yaml", "namespace.yaml")
HELM_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def kustomize(kubectl: Path, folder: Path) -> Objects:
    result = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def key(found: dict[str, Any]) -> tuple[str, str, str, str]:
    return found["apiVersion"], found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def test_base_is_the_rendered_chart(helm: Path, tmp_path: Path) -> None:
    # In a copy: tests of other processes read the checkout at the same time.
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "examples/classes", tmp_path / "examples/classes")
    base, classes = (tmp_path / folder.relative_to(ROOT) for folder in (BASE, CHART / "classes"))
    for folder in (base, classes):
        for path in folder.iterdir():
            if path.name not in NOT_GENERATED:
                path.unlink()
    subprocess.run([sys.executable, tmp_path / "deploy/base.py", "--helm", helm], check=True, capture_output=True)
    for generated, committed in ((base, BASE), (classes, CHART / "classes")):
        after, before = (
            {path.name: path.read_text() for path in folder.iterdir()} for folder in (generated, committed)
        )
        assert after == before, "the chart has changed: `make manifests` rewrites the base"


def test_the_documented_patch_removes_the_class_that_earlier_versions_refuse(kubectl: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/install/deploy.md").read_text()
    (patch,) = re.findall(r"^```yaml\n(patches:\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    shutil.copytree(BASE, tmp_path / "base")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/kustomization.yaml").write_text(f"resources: [../base]\n{patch}")
    removed = set(map(key, kustomize(kubectl, BASE))) - set(map(key, kustomize(kubectl, tmp_path / "overlay")))
    assert removed == {("resource.k8s.io/v1", "DeviceClass", "", "nvidia-share")}


def test_chart_has_a_copy_of_the_example_classes() -> None:
    examples = {path.name: path.read_text() for path in (ROOT / "examples/classes").glob("*.yaml")}
    folder = ROOT / "deploy/helm/dra-agent/classes"
    assert len(examples) >= 8
    assert folder.is_dir() and not folder.is_symlink(), "without symlink support a link is a text file"
    copied = {path.name: path.read_text() for path in folder.iterdir()}
    assert copied == examples, "the examples have changed: `make manifests` copies them into the chart"


def test_base_has_every_object_of_the_chart(kubectl: Path, render: Render) -> None:
    expected = {}
    for found in render():
        for label in HELM_LABELS:
            found["metadata"]["labels"].pop(label, None)
        expected[key(found)] = found
    loaded = {key(found): found for found in kustomize(kubectl, BASE) if found["kind"] != "Namespace"}
    assert loaded == expected


def test_overlay_updates_the_policy_with_the_namespace(kubectl: Path) -> None:
    objects = kustomize(kubectl, ROOT / "deploy/kustomize/example")
    account = only_object(objects, "ServiceAccount")["metadata"]
    assert account["namespace"] == "accelerators" == only_object(objects, "Namespace")["metadata"]["name"]
    policies = objects_by_name(objects, "ValidatingAdmissionPolicy")
    del policies["dra-agent-configuration"]
    assert set(policies) == {"dra-agent", "dra-agent-claims", "dra-agent-events", "dra-agent-nodes"}
    for policy in policies.values():
        (condition,) = policy["spec"]["matchConditions"]
        assert f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"' in condition["expression"]
    (subject,) = only_object(objects, "ClusterRoleBinding")["subjects"]
    assert (subject["namespace"], subject["name"]) == (account["namespace"], account["name"])
    daemonset = only_object(objects, "DaemonSet")
    assert daemonset["metadata"]["namespace"] == account["namespace"]
    assert daemonset["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_base_script_reports_missing_helm(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "deploy/base.py"]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "HELM=" in result.stderr


@pytest.mark.parametrize("folder", ["base", "example"])
def test_kustomizations_name_existing_files(folder: str) -> None:
    directory = ROOT / "deploy/kustomize" / folder
    resources = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
    assert resources and all((directory / name).exists() for name in resources)
    if folder == "base":
        assert set(resources) == {path.name for path in directory.iterdir()} - {"kustomization.yaml"}
