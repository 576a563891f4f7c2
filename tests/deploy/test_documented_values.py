"""Values, commands and objects of the chart that pages show."""

from __future__ import annotations

import json
import re
import shutil
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


def test_the_policy_permits_a_collector_the_port_that_it_scrapes(render: Render) -> None:
    (values,) = blocks("operate/opentelemetry.md", "networkPolicy:")
    (rule,) = [
        rule
        for rule in only_object(render(yaml.safe_load(values)), "NetworkPolicy")["spec"]["ingress"]
        if rule["from"] == yaml.safe_load(values)["networkPolicy"]["metricsFrom"]
    ]
    assert "metrics" in [port["name"] for port in container(render())["ports"]]
    assert "metrics" in [port["port"] for port in rule["ports"]], "the name of a port, as NetworkPolicy permits"


def test_the_receivers_of_a_collector_scrape_the_agents(render: Render, tmp_path: Path) -> None:
    pods, host = (yaml.safe_load(block) for block in blocks("operate/opentelemetry.md", "receivers:"))
    for collector in (pods, host):
        ((signal, pipeline),) = collector["service"]["pipelines"].items()
        assert signal == "metrics"
        assert pipeline["receivers"] == list(collector["receivers"]) == ["prometheus"]
        assert pipeline["exporters"] == list(collector["exporters"])
    of_pods, of_host = (one["receivers"]["prometheus"]["config"] for one in (pods, host))
    ((discovering,), (static,)) = (one["scrape_configs"] for one in (of_pods, of_host))
    (kept,) = [rule["regex"] for rule in discovering["relabel_configs"]]
    assert kept in [port["name"] for port in container(render())["ports"]]
    (address,) = re.findall(r'`metrics_address = "(.*?)"`', (PAGES / "operate/opentelemetry.md").read_text())
    assert static["static_configs"] == [{"targets": [address]}]
    # The promtool of Debian is built without the discovery of Kubernetes.
    assert discovering.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["dra-agent"]}}]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    for config in (of_pods, of_host):
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        done = subprocess.run([promtool, "check", "config", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


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
