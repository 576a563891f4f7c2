"""The dashboards for Grafana: layout, existing metrics, expressions that Prometheus parses, the chart's ConfigMap."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.every_metric import exported_types
from deploy.rendering import CHART, ROOT, RefusedError, Render, container, only_object

FOLDER = CHART / "files/dashboards"
FILES = sorted(FOLDER.glob("*.json"))
ALERTS = CHART / "files/alerts.yaml"
RECORDING = CHART / "files/recording-rules.yaml"
RECORDING_TESTS = Path(__file__).with_name("recording-rules.test.yaml")
GRID_COLUMNS = 24


def load(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def records() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RECORDING.read_text())["groups"] for rule in group["rules"]]


def targets() -> list[dict[str, Any]]:
    return [target for path in FILES for panel in load(path)["panels"] for target in panel["targets"]]


def expressions() -> list[str]:
    return [target["expr"] for target in targets()]


def exported() -> set[str]:
    """Return the names that an agent exports, with those of histograms."""
    types = exported_types()
    return {*types} | {f"{name}_bucket" for name, kind in types.items() if kind == "histogram"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_can_be_provisioned(path: Path) -> None:
    found = load(path)
    assert found["uid"] == path.stem and len(found["uid"]) <= 40, "Grafana limits a uid to 40 characters"
    assert found["schemaVersion"] == 39 and "id" not in found
    names = [variable["name"] for variable in found["templating"]["list"]]
    assert names[0] == "datasource" and found["templating"]["list"][0]["type"] == "datasource"
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels) > 0
    for panel in panels:
        place = panel["gridPos"]
        assert min(place["w"], place["h"]) > 0 and place["x"] >= 0 and place["x"] + place["w"] <= GRID_COLUMNS
        assert panel["description"].endswith(".") and panel["type"] in ("stat", "timeseries", "table")
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(set(re.findall(r"\$(?!__)(\w+)", target["expr"])) <= {"instance"} for target in panel["targets"])
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafana_knows_every_field(path: Path) -> None:
    """Grafana ignores a field that its types do not have, such as a misspelled one."""
    assert unknown_fields(load(path)) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    found = load(FILES[0])
    number, panel = next((number, one) for number, one in enumerate(found["panels"]) if one["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["units"] = "bytes"
    panel["targets"][0]["expression"] = "1"
    found["refreshes"] = "30s"
    paths = {f"panels/{number}/fieldConfig/defaults/units", f"panels/{number}/targets/0/expression", "refreshes"}
    assert set(unknown_fields(found)) == paths


def unknown_fields(found: dict[str, Any]) -> list[str]:
    """Return the paths of values that are lost if Grafana's types decode and encode a dashboard."""
    plugins.register_default_plugins()
    kept = json.loads(json.dumps(Dashboard.from_json(found), cls=JSONEncoder))
    # The types lack it, and Grafana itself writes it: the query of a variable as its editor shows it.
    return [path for path in _lost(found, kept) if not re.fullmatch(r"templating/list/\d+/definition", path)]


def _lost(value: Any, kept: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and isinstance(kept, dict):
        for name, inner in value.items():
            where = f"{path}/{name}".removeprefix("/")
            yield from _lost(inner, kept[name], where) if name in kept else [where]
    elif isinstance(value, list) and isinstance(kept, list) and len(value) == len(kept):
        for number, (inner, inner_kept) in enumerate(zip(value, kept, strict=True)):
            yield from _lost(inner, inner_kept, f"{path}/{number}")
    elif value != kept:
        yield path


def test_the_dashboards_are_fleet_node_claims_reclaim_and_health() -> None:
    assert [path.stem.removeprefix("dra-agent-") for path in FILES] == ["claims", "fleet", "health", "node", "reclaim"]


def test_every_metric_of_a_panel_or_a_rule_is_exported_or_recorded() -> None:
    known = exported()
    for rule in records():
        assert set(re.findall(r"\bdra_agent_\w+", rule["expr"])) <= known, rule["record"]
    known |= {rule["record"] for rule in records()}
    for expression in expressions():
        names = re.findall(r"\b(?:dra_agent|process)[\w:]+", expression)
        assert names and set(names) <= known, expression


def test_claims_of_one_name_in_two_namespaces_are_two_series() -> None:
    """The name of a claim is unique in its namespace only."""
    alerts = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    grouped = 0
    for expression in (*expressions(), *(rule["expr"] for rule in (*records(), *alerts))):
        for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
            names = re.split(r"\s*,\s*", labels.strip())
            assert "claim" not in names or "namespace" in names, expression
            grouped += "claim" in names
    assert grouped > 0
    for query in targets():
        legend = query["legendFormat"]
        assert "{{claim}}" not in legend or "{{namespace}}/{{claim}}" in legend, legend
    for alert in alerts:
        text = alert["annotations"]["summary"]
        assert "$labels.claim " not in text or "{{ $labels.namespace }}/{{ $labels.claim }}" in text, text


def test_a_table_of_claims_shows_their_namespace_and_the_longest_value_first() -> None:
    panels = [panel for path in FILES for panel in load(path)["panels"] if panel["type"] == "table"]
    (idle,) = (panel for panel in panels if "claim_idle" in panel["targets"][0]["expr"])
    (columns,) = (one["options"] for one in idle["transformations"])
    assert not columns["excludeByName"].keys() & {"namespace", "claim", "device", "instance", "Value"}
    assert idle["options"]["sortBy"] == [{"displayName": columns["renameByName"]["Value"], "desc": True}]


def test_every_recording_rule_has_a_unit_test() -> None:
    tests = yaml.safe_load(RECORDING_TESTS.read_text())["tests"]
    tested = {name for test in tests for one in test["promql_expr_test"] for name in one["expr"].split()[:1]}
    assert {rule["record"] for rule in records()} == tested


def test_prometheus_parses_all_expressions(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    rules = [
        {
            "record": f"panel:expression{number}",
            "expr": evaluated(expression),
        }
        for number, expression in enumerate(expressions())
    ]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for command in (
        ["check", "rules", "--lint-fatal", str(RECORDING)],
        ["check", "rules", str(panels)],
        ["test", "rules", str(RECORDING_TESTS)],
    ):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_power_of_claims_of_one_name_is_not_added(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    (power,) = (one for one in expressions() if "rate(dra_agent_claim_energy" in one and "[1h]" not in one)
    labels = 'claim="train", instance="a", namespace="{}"'
    series = [
        (f'dra_agent_claim_energy_joules_total{{device="gpu-{gpu}", {labels.format(namespace)}}}', f"0+{joules}x20")
        for gpu, namespace, joules in (("0", "team-a", 600), ("1", "team-a", 600), ("2", "team-b", 3000))
    ]
    expected = [
        {"labels": f"{{{labels.format(name)}}}", "value": watts} for name, watts in (("team-a", 20), ("team-b", 50))
    ]
    content = {
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [{"expr": evaluated(power), "eval_time": "10m", "exp_samples": expected}],
            }
        ]
    }
    file = tmp_path / "power.test.yaml"
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def evaluated(expression: str) -> str:
    """Return the expression with values for the variables of Grafana."""
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".*")


def test_the_examples_of_the_page_are_valid(tmp_path: Path, render: Render) -> None:
    page = (ROOT / "docs/how-to/operate/monitoring.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    values, pods, hosts, protected, secrets, rules = blocks
    kinds = ("PodMonitor", "PrometheusRule")
    apis = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in kinds)
    assert {*kinds, "ConfigMap"} <= {found["kind"] for found in render(yaml.safe_load(values), api_versions=apis)}
    monitor = only_object(render(yaml.safe_load(secrets), api_versions=apis), "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    discovered = yaml.safe_load(pods)
    (job,) = discovered["scrape_configs"]
    # The promtool of Debian is built without the discovery of Kubernetes.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["dra-agent"]}}]
    (kept,) = [rule["regex"] for rule in job["relabel_configs"] if "regex" in rule]
    assert kept in [port["name"] for port in container(render())["ports"]]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    for name, config in (("pods.yml", yaml.safe_dump(discovered)), ("hosts.yml", hosts), ("protected.yml", protected)):
        (tmp_path / name).write_text(config)
    (tmp_path / "token").touch()
    (tmp_path / "ca.crt").touch()
    (tmp_path / "own.yaml").write_text(rules)
    for name in ("alerts.yaml", "recording-rules.yaml"):
        shutil.copy(CHART / "files" / name, tmp_path)
    for command in (
        ["check", "config", "pods.yml"],
        ["check", "config", "hosts.yml"],
        ["check", "config", "protected.yml"],
        ["check", "rules", "own.yaml"],
    ):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_has_a_config_map_that_grafana_finds(render: Render) -> None:
    assert not [found for found in render() if found["metadata"]["name"].endswith("-dashboards")]
    values: dict[str, Any] = {"create": True, "annotations": {"grafana_folder": "GPUs"}}
    (found,) = (
        one for one in render({"metrics": {"dashboards": values}}) if one["metadata"]["name"].endswith("-dashboards")
    )
    assert found["kind"] == "ConfigMap" and found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    assert found["data"] == {path.name: path.read_text() for path in FILES}, "Helm evaluates no legend"
    values["labels"] = {"app.kubernetes.io/name": "x"}
    with pytest.raises(RefusedError, match=r"metrics\.dashboards\.labels: the chart sets"):
        render({"metrics": {"dashboards": values}})
