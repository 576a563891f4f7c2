"""Values, commands and objects of the chart that pages show."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy.rendering import ROOT, Render, container, objects_by_name, only_object
from dra_agent import _native
from dra_agent.manifests import parse_objects

PAGES = ROOT / "docs/how-to"
DRIVER = "dra-agent.internal"


def blocks(page: str, marker: str) -> list[str]:
    """Return the YAML blocks of a page that contain the marker."""
    found = re.findall(r"^```yaml\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if marker in block]


def egress_ports(objects: list[dict[str, Any]]) -> set[int]:
    policy = only_object(objects, "NetworkPolicy")
    return {port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())}


def test_a_proxy_and_dns_are_permitted_for_all_pools(render: Render) -> None:
    (values,) = blocks("install/proxy.md", "networkPolicy:")
    pools = [{"name": "mig", "nodeSelector": {"pool": "mig"}}]
    objects = render({**yaml.safe_load(values), "pools": pools})
    assert {53, 3128} <= egress_ports(objects)
    selector = only_object(objects, "NetworkPolicy")["spec"]["podSelector"]
    (names,) = [expression["values"] for expression in selector["matchExpressions"]]
    agents = [found for found in objects if found["kind"] == "DaemonSet"]
    assert len(agents) == 2
    assert {agent["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] for agent in agents} <= set(names)


def test_a_collector_with_tls_has_its_authority_in_the_pod(render: Render) -> None:
    (values,) = blocks("operate/opentelemetry.md", "networkPolicy:")
    objects = render(yaml.safe_load(values))
    assert {53, 4318} <= egress_ports(objects)
    config = only_object(objects, "ConfigMap")["data"]["config.toml"]
    assert 'endpoint = "https://' in config
    mounted = {Path(mount["mountPath"]) for mount in container(objects)["volumeMounts"]}
    for path in re.findall(r'_file = "(.*)"', config):
        assert Path(path).parent in mounted


def test_the_objects_of_a_service_are_rendered_by_the_command_of_the_page(helm: Path) -> None:
    page = (PAGES / "install/systemd.md").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^helm template (.*?) \| kubectl apply -f -$", page, re.MULTILINE)
    assert "--kube-version" in command, (
        "a helm that was built for a Kubernetes before 1.34 refuses the chart without it"
    )
    result = subprocess.run([helm, "template", *command.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    objects = [found for found in yaml.safe_load_all(result.stdout) if found]
    kinds = {found["kind"] for found in objects}
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"} <= kinds
    assert {found["metadata"].get("namespace", "dra-agent") for found in objects} == {"dra-agent"}
    assert "kubectl create namespace dra-agent" in page


@pytest.mark.parametrize(
    ("driver", "attributes", "selected"),
    [
        (DRIVER, {"type": "gpu", "vendor": "nvidia"}, True),
        (DRIVER, {"type": "gpu", "vendor": "amd"}, False),
        (DRIVER, {"type": "nic", "vendor": "nvidia"}, False),
        ("other.example.com", {}, False),
    ],
)
def test_the_class_of_an_extended_resource_selects_its_vendor(
    driver: str, attributes: dict[str, str], *, selected: bool, render: Render
) -> None:
    page = (PAGES / "install/migrate.md").read_text()
    (names,) = re.findall(r"--set-json 'deviceClasses\.extendedResourceNames=(\{.*\})'", page)
    ((name, resource),) = json.loads(names).items()
    rendered = objects_by_name(render({"deviceClasses": {"extendedResourceNames": {name: resource}}}), "DeviceClass")
    (loaded,) = parse_objects(yaml.safe_dump(rendered[name]), "deviceclasses.yaml")
    assert loaded.value["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    (selector,) = loaded.value["spec"]["selectors"]
    device = {"name": "d", "attributes": {name: {"string": value} for name, value in attributes.items()}}
    expression = _native.CelExpression.selector(selector["cel"]["expression"])
    assert expression.matches(driver, msgspec.json.encode(device)) is selected
