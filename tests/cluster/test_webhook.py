"""The admission webhook with a real API server: what it refuses, what it allows, and what happens while it is down."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, CLASSES, ApiStatusError, Kind
from cluster.kube.cluster import Cluster
from cluster.kube.process import Process
from cluster.kube.workload import Namespace, opaque, request
from webhook.keys import Secret

HARDWARE = {"node-a": "l40s"}
DRIVER = "dra-agent.internal"
CHART = Path(__file__).parents[2] / "deploy/helm/dra-agent"
CONFIGURATIONS = Kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", namespaced=False)


def time_slicing(interval: str) -> dict[str, Any]:
    return {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", "timeSlicing": {"interval": interval}}


VALID = opaque(DRIVER, time_slicing("Long"))
INVALID = opaque(DRIVER, time_slicing("Lng"))
MESSAGE = "parameters.timeSlicing.interval: invalid enum value 'Lng'; correct the settings"


class Webhook:
    """`dra-agent webhook` on the API server's address, and the chart's configuration for it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.address = cluster.control_plane.cluster_dir.api_address
        self.secret = Secret(directory / "tls", f"IP:{self.address}")
        command = [
            sys.executable,
            "-m",
            "dra_agent",
            "webhook",
            "--listen",
            f"{self.address}:0",
            "--log-level",
            "debug",
        ]
        command += ["--tls-cert", str(self.secret.certificate), "--tls-key", str(self.secret.key)]
        self.process = Process(
            "webhook", command, directory / "webhook.log", cluster.control_plane.cluster_dir.directory
        )
        self.port = 0

    def start(self) -> None:
        self.process.start()
        self.wait_for_log("answering admission reviews")
        self.port = int(self.process.read_log().rpartition("port=")[2].split()[0])

    def wait_for_log(self, text: str) -> None:
        self.cluster.api.wait(lambda: text in self.process.read_log(), f"the webhook logs {text!r}")

    def configure(self, failure_policy: str, certificate: Path | None = None) -> None:
        """Configure the API server as the chart does, but by address, because no service proxy runs here."""
        authority = base64.b64encode((certificate or self.secret.certificate).read_bytes()).decode()
        values = {
            "enabled": True,
            "tlsSecret": "unused",
            "caBundle": authority,
            "failurePolicy": failure_policy,
            "timeoutSeconds": 5,
        }
        flags = ("--show-only", "templates/webhook.yaml")
        rendered = self.cluster.helm_template("dra-agent", CHART, *flags, values={"webhook": values})
        (body,) = (found for found in yaml.safe_load_all(rendered) if found["kind"] == "ValidatingWebhookConfiguration")
        for hook in body["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"]["url"] = f"https://{self.address}:{self.port}{path}"
        self.remove()
        self.cluster.api.create(CONFIGURATIONS, body)
        self.name = body["metadata"]["name"]

    def remove(self) -> None:
        for found in self.cluster.api.list(CONFIGURATIONS):
            self.cluster.api.delete(CONFIGURATIONS, found["metadata"]["name"])


@pytest.fixture
def webhook(cluster: Cluster, tmp_path: Path) -> Iterator[Webhook]:
    created = Webhook(cluster, tmp_path)
    created.start()
    yield created
    created.remove()
    if created.process.running:
        created.process.end()


def refusal(namespace: Namespace, name: str = "wrong", config: dict[str, Any] = INVALID) -> str:
    """Return the reason for which a claim is refused; empty if it is created, and then it is deleted again."""
    try:
        namespace.claim(name, request("gpu", "gpu"), config=[config])
    except ApiStatusError as error:
        return str(error)
    namespace.delete_claim(name)
    namespace.api.wait(lambda: not namespace.api.find(CLAIMS, name, namespace.name), "the claim is gone")
    return ""


def wait_until_in_force(namespace: Namespace) -> None:
    """Wait for the API server, which applies a new configuration within about a second."""
    namespace.api.wait(lambda: refusal(namespace), "the API server asks the webhook", every=0.2)


def test_invalid_configuration_is_refused_on_apply(
    webhook: Webhook, agents: dict[str, Agent], namespace: Namespace
) -> None:
    webhook.configure("Fail")
    wait_until_in_force(namespace)
    message = refusal(namespace)
    assert (
        "configuration.webhook.dra-agent.internal" in message and f"spec.devices.config[0].opaque.{MESSAGE}" in message
    )
    with pytest.raises(
        ApiStatusError, match=r"spec\.spec\.devices\.config\[0\]\.opaque\.parameters\.timeSlicing\.interval"
    ):
        namespace.template("wrong", request("gpu", "gpu"), config=[INVALID])
    spec = {"config": [{"opaque": INVALID["opaque"]}]}
    with pytest.raises(ApiStatusError, match=r"spec\.config\[0\]\.opaque\.parameters\.timeSlicing\.interval"):
        namespace.api.create(CLASSES, {"metadata": {"name": "webhook-wrong"}, "spec": spec})
    # A class can be changed, and then it is checked again.
    spec = {"config": [{"opaque": VALID["opaque"]}]}
    created = namespace.api.create(CLASSES, {"metadata": {"name": "webhook-right"}, "spec": spec})
    try:
        created["spec"]["config"][0]["opaque"]["parameters"]["timeSlicing"]["interval"] = "Lng"
        with pytest.raises(ApiStatusError, match="Lng"):
            namespace.api.replace(CLASSES, created)
    finally:
        namespace.api.delete(CLASSES, "webhook-right")
    # A valid claim is prepared for its pod.
    namespace.claim("right", request("gpu", "gpu"), config=[VALID, opaque("other.example", {"interval": "Lng"})])
    namespace.pod("user", claim="right", node="node-a")
    namespace.running("user")
    assert {"Long"} == {v for k, v in namespace.environment("user").items() if k.endswith("_TIME_SLICE")}


def test_without_the_webhook_only_own_objects_are_blocked(webhook: Webhook, namespace: Namespace) -> None:
    webhook.configure("Fail")
    wait_until_in_force(namespace)
    webhook.process.end()
    # Fail: a configuration that cannot be checked is refused. Configuration for other drivers is not affected.
    assert "failed calling webhook" in refusal(namespace, config=VALID)
    assert refusal(namespace, config=opaque("other.example", {"interval": "Lng"})) == ""
    namespace.claim("plain", request("gpu", "gpu"))
    webhook.configure("Ignore")
    # Ignore: accepted now, checked when a pod starts.
    namespace.api.wait(lambda: not refusal(namespace), "the API server accepts it", every=0.2)


def test_certificate_renewal_causes_no_interruption(webhook: Webhook, namespace: Namespace) -> None:
    webhook.configure("Fail")
    wait_until_in_force(namespace)
    webhook.secret.renew()
    webhook.wait_for_log("certificate replaced")
    webhook.configure("Fail")
    namespace.api.wait(lambda: MESSAGE in refusal(namespace), "the API server trusts the new certificate", every=0.2)
