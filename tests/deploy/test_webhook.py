"""The admission webhook of the chart: disabled by default, complete if enabled, and only for this driver."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.rendering import RefusedError, Render, objects_by_name, only_object

ENABLED: dict[str, Any] = {"enabled": True, "tlsSecret": "webhook-tls", "caBundle": "Q0E="}


def webhook(**values: Any) -> dict[str, Any]:
    return {"webhook": {**ENABLED, **values}}


def test_webhook_is_disabled_by_default(render: Render) -> None:
    kinds = [found["kind"] for found in render()]
    assert not {"Deployment", "Service", "ValidatingWebhookConfiguration"} & set(kinds)


def test_service_certificate_and_port_match(render: Render) -> None:
    objects = render(webhook(failurePolicy="Fail", timeoutSeconds=3), release="gpus", namespace="infra")
    deployment, service = only_object(objects, "Deployment"), only_object(objects, "Service")
    (hook,) = only_object(objects, "ValidatingWebhookConfiguration")["webhooks"]
    client = hook["clientConfig"]
    assert client["caBundle"] == "Q0E="
    assert client["service"] == {
        "name": service["metadata"]["name"],
        "namespace": service["metadata"]["namespace"],
        "path": "/validate",
        "port": service["spec"]["ports"][0]["port"],
    }
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == ("gpus-dra-agent-webhook", "infra")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = pod["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    port, metrics = container["ports"]
    assert (metrics["name"], variables["DRA_AGENT_METRICS_ADDRESS"]) == ("metrics", f":{metrics['containerPort']}")
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert f"--listen=:{port['containerPort']}" in container["args"]
    (mount,), (volume,) = container["volumeMounts"], pod["spec"]["volumes"]
    assert f"--tls-cert={mount['mountPath']}/tls.crt" in container["args"]
    assert volume["secret"]["secretName"] == "webhook-tls"
    assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["sideEffects"]) == ("Fail", 3, "None")


def test_webhook_pods_are_separate_and_have_no_permissions(render: Render) -> None:
    objects = render(webhook())
    pod = only_object(objects, "Deployment")["spec"]["template"]
    daemonset_labels = only_object(objects, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not daemonset_labels.items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["automountServiceAccountToken"] is False and "serviceAccountName" not in pod["spec"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["containers"][0]["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    policy = objects_by_name(objects, "NetworkPolicy")["dra-agent-webhook"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ["https", "metrics"]
    assert "egress" not in policy and policy["policyTypes"] == ["Ingress", "Egress"]


def test_webhook_pods_are_spread_and_survive_a_drain(render: Render) -> None:
    objects = render(webhook(replicas=3))
    selector = only_object(objects, "Deployment")["spec"]["selector"]
    pod = only_object(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    keys = [constraint["topologyKey"] for constraint in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for constraint in pod["topologySpreadConstraints"]:
        assert constraint["labelSelector"] == selector and constraint["matchLabelKeys"] == ["pod-template-hash"]
    budget = only_object(objects, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, selector)
    assert not [found for found in render(webhook()) if found["kind"] == "PodDisruptionBudget"], (
        "it would protect nothing"
    )
    plain = only_object(render(webhook(priorityClassName="", topologySpreadConstraints=[])), "Deployment")
    assert not {"priorityClassName", "topologySpreadConstraints"} & set(plain["spec"]["template"]["spec"])


def test_webhook_covers_all_versions_and_only_creations(render: Render) -> None:
    (hook,) = only_object(render(webhook()), "ValidatingWebhookConfiguration")["webhooks"]
    rules = {resource: rule for rule in hook["rules"] for resource in rule["resources"]}
    assert set(rules) == {"resourceclaims", "resourceclaimtemplates", "deviceclasses"}
    for resource, rule in rules.items():
        assert rule["apiVersions"] == ["v1", "v1beta2", "v1beta1"] and rule["apiGroups"] == ["resource.k8s.io"]
        assert rule["operations"] == (["CREATE", "UPDATE"] if resource == "deviceclasses" else ["CREATE"])


def test_webhook_is_called_for_the_driver_name_only(render: Render) -> None:
    objects = render({**webhook(), "driverName": "gpus.example"})
    (hook,) = only_object(objects, "ValidatingWebhookConfiguration")["webhooks"]
    (condition,) = hook["matchConditions"]
    assert 'entry.opaque.driver == "gpus.example"' in condition["expression"]
    variables = {
        entry["name"]: entry["value"]
        for entry in only_object(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["DRA_AGENT_DRIVER_NAME"] == "gpus.example"


def test_ca_bundle_can_come_from_an_annotation(render: Render) -> None:
    values = webhook(caBundle="", annotations={"cert-manager.io/inject-ca-from": "infra/webhook"})
    found = only_object(render(values), "ValidatingWebhookConfiguration")
    assert found["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "infra/webhook"}
    assert "caBundle" not in found["webhooks"][0]["clientConfig"]


def test_client_ca_requires_client_certificates(render: Render) -> None:
    plain = only_object(render(webhook()), "Deployment")["spec"]["template"]["spec"]
    assert not [argument for argument in plain["containers"][0]["args"] if "client" in argument]
    values = webhook(clientCaSecret="apiserver-ca", clientNames=["kube-apiserver", "konnectivity"])
    pod = only_object(render(values), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volume = next(found for found in pod["volumes"] if found.get("secret", {}).get("secretName") == "apiserver-ca")
    mount = next(found for found in container["volumeMounts"] if found["name"] == volume["name"])
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "a key in that Secret is not mounted"
    assert f"--client-ca={mount['mountPath']}/ca.crt" in container["args"]
    assert container["args"][-2:] == ["--client-name=kube-apiserver", "--client-name=konnectivity"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/healthz", "/readyz"), "paths without client certificates"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clientNames": ["kube-apiserver"]}, "webhook.clientCaSecret"),
        ({"tlsSecret": ""}, "webhook.tlsSecret"),
        ({"caBundle": ""}, "webhook.caBundle"),
        ({"caBundle": "-----BEGIN CERTIFICATE-----"}, "caBundle"),
        ({"failurePolicy": "Open"}, "failurePolicy"),
        ({"timeoutSeconds": 60}, "timeoutSeconds"),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "topologySpreadConstraints/0"),
        ({"port": 9417}, "webhook.port: must differ from metrics.port"),
    ],
)
def test_invalid_webhook_values_are_refused(render: Render, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        render(webhook(**values))
