"""PodMonitor, ServiceMonitor, PrometheusRule, the alerting rules, and the priority levels of the API server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.every_metric import documented_types
from deploy.rendering import CHART, ROOT, RefusedError, Render, objects_by_name, only_object

ALERTS = CHART / "files/alerts.yaml"
ALERT_TESTS = Path(__file__).with_name("alerts.test.yaml")
OPERATOR = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule", "ServiceMonitor"))
POOL = {"name": "gpu", "nodeSelector": {"pool": "gpu"}}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def monitor(render: Render, **values: Any) -> dict[str, Any]:
    values = {"metrics": {"podMonitor": {"create": True, **values}}, "pools": [POOL]}
    objects = render(values, api_versions=OPERATOR)
    spec = only_object(objects, "PodMonitor")["spec"]
    selector = spec["selector"]
    (expression,) = selector["matchExpressions"]
    pods = [found["spec"]["template"] for found in objects if found["kind"] in ("DaemonSet",)]
    assert len(pods) == 2
    for pod in pods:
        labels = pod["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items() and labels[expression["key"]] in expression["values"]
        (container,) = pod["spec"]["containers"]
        assert spec["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}
    return only_object(objects, "PodMonitor")


def test_pod_monitor_selects_all_agents(render: Render) -> None:
    (endpoint,) = monitor(render)["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    assert "interval" not in endpoint
    assert endpoint["honorLabels"] is True, "series of claims keep the namespace of the claim"
    drop = {"action": "labeldrop", "regex": "pool"}
    found = monitor(render, labels={"release": "prometheus"}, interval="30s", metricRelabelings=[drop])
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    assert (endpoint["interval"], endpoint["metricRelabelings"]) == ("30s", [drop])
    assert found["metadata"]["labels"]["release"] == "prometheus"


def test_service_monitor_selects_a_service_of_all_agents(render: Render) -> None:
    values = {"metrics": {"serviceMonitor": {"create": True, "interval": "30s"}}, "pools": [POOL]}
    objects = render(values, api_versions=OPERATOR)
    found = only_object(objects, "ServiceMonitor")["spec"]
    selector = found["selector"]["matchLabels"].items()
    services = [one for one in objects if one["kind"] == "Service" and selector <= one["metadata"]["labels"].items()]
    (service,) = (one["spec"] for one in services)
    (port,) = service["ports"]
    (endpoint,) = found["endpoints"]
    assert endpoint["port"] == port["name"] and endpoint["interval"] == "30s" and endpoint["honorLabels"] is True
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    assert service["publishNotReadyAddresses"] and service["clusterIP"] == "None"
    selected = [
        port["targetPort"] in {named["name"] for container in pod["spec"]["containers"] for named in container["ports"]}
        for one in objects
        if one["kind"] in ("DaemonSet",)
        for pod in [one["spec"]["template"]]
        if service["selector"].items() <= pod["metadata"]["labels"].items()
    ]
    assert selected == [True] * 2
    assert "PodMonitor" not in {one["kind"] for one in objects}


PROTECTED = {"tlsSecret": "certificate", "tokenSecret": "tokens", "tokenKey": "key"}
FILES = {
    "DRA_AGENT_METRICS_TLS_CERT": "/etc/metrics-tls/tls.crt",
    "DRA_AGENT_METRICS_TLS_KEY": "/etc/metrics-tls/tls.key",
    "DRA_AGENT_METRICS_TOKEN_FILE": "/etc/metrics-token/key",
}


def test_metrics_of_all_pods_can_have_tls_and_a_token(render: Render) -> None:
    objects = render({"metrics": PROTECTED, "pools": [POOL]})
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("DaemonSet",)]
    assert len(pods) == 2
    for pod in pods:
        (container,) = pod["containers"]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert {name: values[name] for name in FILES} == FILES
        mounts = {
            one["mountPath"]: (one["name"], one["readOnly"]) for one in container["volumeMounts"] if "readOnly" in one
        }
        volumes = {one["name"]: one.get("secret") for one in pod["volumes"]}
        for path, secret, keys in (
            ("/etc/metrics-tls", "certificate", ["tls.crt", "tls.key"]),
            ("/etc/metrics-token", "tokens", ["key"]),
        ):
            name, is_read_only = mounts[path]
            found = volumes[name]
            assert is_read_only and found["secretName"] == secret and found["defaultMode"] == 0o440
            assert [item["key"] for item in found["items"]] == keys == [item["path"] for item in found["items"]]
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ("health", "https"), "not that of /metrics"
    plain = render()
    assert not [name for name in FILES if name in str(plain)]


@pytest.mark.parametrize(
    ("value", "endpoints"), [("podMonitor", "podMetricsEndpoints"), ("serviceMonitor", "endpoints")]
)
def test_monitors_use_tls_and_the_token(render: Render, value: str, endpoints: str) -> None:
    def endpoint(**metrics: Any) -> dict[str, Any]:
        values = {"metrics": {value: {"create": True}, **metrics}}
        objects = render(values, namespace="infra", api_versions=OPERATOR)
        (found,) = only_object(objects, value[0].upper() + value[1:])["spec"][endpoints]
        assert isinstance(found, dict)
        return found

    found = endpoint(**PROTECTED)
    assert found["scheme"] == "https"
    authority = {"secret": {"name": "certificate", "key": "ca.crt"}}
    assert found["tlsConfig"] == {"ca": authority, "serverName": "dra-agent-metrics.infra.svc"}
    assert found["authorization"] == {"credentials": {"name": "tokens", "key": "key"}}
    own = {"insecureSkipVerify": True}
    assert endpoint(**PROTECTED, tlsConfig=own)["tlsConfig"] == own
    assert not endpoint().keys() & {"scheme", "tlsConfig", "authorization"}


def test_prometheus_rule_has_the_alerts_of_the_file(render: Render) -> None:
    def spec(**values: Any) -> dict[str, Any]:
        values = {"metrics": {"prometheusRule": {"create": True, **values}}}
        found = only_object(render(values, api_versions=OPERATOR), "PrometheusRule")["spec"]
        assert isinstance(found, dict)
        return found

    recording = yaml.safe_load((CHART / "files/recording-rules.yaml").read_text())["groups"]
    alerts = yaml.safe_load(ALERTS.read_text())["groups"]
    assert spec() == {"groups": alerts + recording}, "Helm evaluates no template of Prometheus"
    group = spec(disabled=["DraAgentFieldsDropped"])["groups"][0]
    assert len(group["rules"]) == len(rules()) - 1
    with pytest.raises(RefusedError, match='unknown alert "X"; the alerts are DraAgentDown'):
        spec(disabled=["X"])


@pytest.mark.parametrize("value", ["podMonitor", "prometheusRule", "serviceMonitor"])
def test_monitoring_requires_the_types_of_the_operator(render: Render, value: str) -> None:
    kind = value[0].upper() + value[1:]
    assert kind not in {found["kind"] for found in render(api_versions=OPERATOR)}
    with pytest.raises(RefusedError, match=rf"metrics\.{value}\.create: the cluster has no {kind}.*--api-versions"):
        render({"metrics": {value: {"create": True}}})
    labels = {"create": True, "labels": {"app.kubernetes.io/name": "x"}}
    with pytest.raises(RefusedError, match=rf"metrics\.{value}\.labels: the chart sets"):
        render({"metrics": {value: labels}}, api_versions=OPERATOR)


def test_alerts_use_documented_metrics_and_are_documented() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    alerts = page.split("## Alerts")[1]
    assert re.findall(r"^\| `(DraAgent\w+)` \| (\w+)", alerts, re.MULTILINE) == [
        (rule["alert"], rule["labels"]["severity"]) for rule in rules()
    ]
    for rule in rules():
        names = re.findall(r"\b(dra_agent_\w+)", rule["expr"])
        assert names and set(names) <= documented_types().keys(), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}


RUNBOOK = ROOT / "docs/how-to/operate/alerts.md"
RUNBOOK_URL = "https://docs.example.com/how-to/operate/alerts.html"


def runbook_urls(alerts: list[dict[str, Any]]) -> dict[str, str | None]:
    return {alert["alert"]: alert["annotations"].get("runbook_url") for alert in alerts}


def test_every_alert_has_a_section_of_the_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in rules())


def test_alerts_have_the_address_of_their_section_if_the_site_is_known(render: Render) -> None:
    (values,) = re.findall(r"^```yaml\n(.*?)^```", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    group = only_object(render(yaml.safe_load(values), api_versions=OPERATOR), "PrometheusRule")["spec"]["groups"][0]
    expected = {rule["alert"]: f"{RUNBOOK_URL}#{rule['alert'].lower()}" for rule in rules()}
    assert runbook_urls(group["rules"]) == expected
    wrong = {"metrics": {"prometheusRule": {"create": True, "runbookUrl": f"{RUNBOOK_URL}#alerts"}}}
    with pytest.raises(RefusedError, match="runbookUrl"):
        render(wrong, api_versions=OPERATOR)


def test_the_command_of_the_runbook_adds_the_addresses_to_the_file(tmp_path: Path) -> None:
    (command,) = re.findall(r"^awk .*?> alerts\.yaml$", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-c", command.replace("> alerts.yaml", f"> {tmp_path}/alerts.yaml")], cwd=ROOT, check=True)
    (group,) = yaml.safe_load((tmp_path / "alerts.yaml").read_text())["groups"]
    assert runbook_urls(group["rules"]) == {rule["alert"]: f"{RUNBOOK_URL}#{rule['alert'].lower()}" for rule in rules()}
    plain = [{**one, "annotations": {**one["annotations"], "runbook_url": None}} for one in rules()]
    added = [{**one, "annotations": {**one["annotations"], "runbook_url": None}} for one in group["rules"]]
    assert plain == added, "nothing else changes"


def test_every_alert_has_a_unit_test() -> None:
    text = ALERT_TESTS.read_text()
    for rule in rules():
        assert text.count(rule["alert"]) >= 1, f"{rule['alert']}: no test shows that it fires"


def test_alerts_fire_for_first_failures_only() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    for command in (["check", "rules", "--lint-fatal", str(ALERTS)], ["test", "rules", str(ALERT_TESTS)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_priority_levels_are_optional_and_cover_the_account(render: Render) -> None:
    kinds = ("FlowSchema", "PriorityLevelConfiguration")
    assert not [found for found in render() if found["kind"] in kinds]
    objects = render({"flowControl": {"create": True, "matchingPrecedence": 700}}, namespace="infra")
    schemas, levels = (objects_by_name(objects, kind) for kind in kinds)
    assert set(schemas) == set(levels) == {"infra-dra-agent", "infra-dra-agent-claims"}
    claims, others = schemas["infra-dra-agent-claims"]["spec"], schemas["infra-dra-agent"]["spec"]
    assert claims["matchingPrecedence"] < others["matchingPrecedence"] == 701
    for name, schema in schemas.items():
        assert schema["spec"]["priorityLevelConfiguration"] == {"name": name}
        (rule,) = schema["spec"]["rules"]
        (subject,) = rule["subjects"]
        assert subject["serviceAccount"] == {"name": "dra-agent", "namespace": "infra"}
    granted = {
        (resource, verb)
        for rule in only_object(objects, "ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    (rule,) = claims["rules"][0]["resourceRules"]
    assert ("resourceclaims", "get") in granted and ("resourceclaims/status", "patch") in granted
    assert (rule["resources"], rule["verbs"]) == (["resourceclaims", "resourceclaims/status"], ["get", "patch"])
