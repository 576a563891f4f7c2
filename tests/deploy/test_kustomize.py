"""The kustomize base is the chart with its default values, and the example overlay moves everything that must move."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import BASE, CHART, ROOT, Objects, Render, one, several

WRITTEN_BY_PEOPLE = ("kustomization.yaml", "namespace.yaml")
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def kustomize(kubectl: Path, folder: Path) -> Objects:
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def key(found: dict[str, Any]) -> tuple[str, str, str, str]:
    return found["apiVersion"], found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def test_the_base_is_what_the_chart_renders(helm: Path, tmp_path: Path) -> None:
    # In a copy: tests of other processes read the checkout at the same time.
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "examples/classes", tmp_path / "examples/classes")
    base, classes = (tmp_path / folder.relative_to(ROOT) for folder in (BASE, CHART / "classes"))
    for folder in (base, classes):
        for path in folder.iterdir():
            if path.name not in WRITTEN_BY_PEOPLE:
                path.unlink()
    subprocess.run([sys.executable, tmp_path / "deploy/base.py", "--helm", helm], check=True, capture_output=True)
    for made, kept in ((base, BASE), (classes, CHART / "classes")):
        after, before = ({path.name: path.read_text() for path in folder.iterdir()} for folder in (made, kept))
        assert after == before, "the chart has changed: `make manifests` writes the base anew"


def test_the_chart_has_the_classes_of_the_examples_in_files_of_its_own() -> None:
    examples = {path.name: path.read_text() for path in (ROOT / "examples/classes").glob("*.yaml")}
    folder = ROOT / "deploy/helm/dra-agent/classes"
    assert len(examples) >= 8
    assert folder.is_dir() and not folder.is_symlink(), "a link is a file with a path in it where links are not kept"
    copied = {path.name: path.read_text() for path in folder.iterdir()}
    assert copied == examples, "the examples have changed: `make manifests` copies them into the chart"


def test_the_base_loads_and_has_every_object_of_the_chart(kubectl: Path, render: Render) -> None:
    expected = {}
    for found in render():
        for label in OF_HELM:
            found["metadata"]["labels"].pop(label, None)
        expected[key(found)] = found
    loaded = {key(found): found for found in kustomize(kubectl, BASE) if found["kind"] != "Namespace"}
    assert loaded == expected


def test_an_overlay_that_moves_the_agent_moves_the_policy_too(kubectl: Path) -> None:
    objects = kustomize(kubectl, ROOT / "deploy/kustomize/example")
    account = one(objects, "ServiceAccount")["metadata"]
    assert account["namespace"] == "accelerators" == one(objects, "Namespace")["metadata"]["name"]
    policies = several(objects, "ValidatingAdmissionPolicy")
    assert set(policies) == {"dra-agent", "dra-agent-claims", "dra-agent-events", "dra-agent-nodes"}
    for policy in policies.values():
        (condition,) = policy["spec"]["matchConditions"]
        assert f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"' in condition["expression"]
    (subject,) = one(objects, "ClusterRoleBinding")["subjects"]
    assert (subject["namespace"], subject["name"]) == (account["namespace"], account["name"])
    daemonset = one(objects, "DaemonSet")
    assert daemonset["metadata"]["namespace"] == account["namespace"]
    assert daemonset["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_without_helm_the_writer_of_the_base_says_so(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "deploy/base.py"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "HELM=" in done.stderr


@pytest.mark.parametrize("folder", ["base", "example"])
def test_kustomizations_name_files_that_exist(folder: str) -> None:
    directory = ROOT / "deploy/kustomize" / folder
    wanted = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
    assert wanted and all((directory / name).exists() for name in wanted)
    if folder == "base":
        assert set(wanted) == {path.name for path in directory.iterdir()} - {"kustomization.yaml"}
