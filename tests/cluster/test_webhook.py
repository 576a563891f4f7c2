"""The admission webhook beside a real API server: what it refuses, what it lets pass, and what happens without it."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, CLASSES, Kind, RefusedError
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


RIGHT = opaque(DRIVER, time_slicing("Long"))
WRONG = opaque(DRIVER, time_slicing("Lng"))
MISTAKE = "parameters.timeSlicing.interval: invalid enum value 'Lng'; correct the settings"


class Webhook:
    """`dra-agent webhook` on the API server's address, and the chart's configuration for it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.address = cluster.control_plane.place.api_address
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
        self.process = Process("webhook", command, directory / "webhook.log", cluster.control_plane.place.directory)
        self.port = 0

    def start(self) -> None:
        self.process.start()
        self.said("answering admission reviews")
        self.port = int(self.process.said().rpartition("port=")[2].split()[0])

    def said(self, what: str) -> None:
        self.cluster.api.wait(lambda: what in self.process.said(), f"the webhook says {what!r}")

    def configure(self, failure_policy: str, certificate: Path | None = None) -> None:
        """Have the API server ask it: as the chart renders it, but by address, as there is no service proxy here."""
        authority = base64.b64encode((certificate or self.secret.certificate).read_bytes()).decode()
        values = {
            "enabled": True,
            "tlsSecret": "unused",
            "caBundle": authority,
            "failurePolicy": failure_policy,
            "timeoutSeconds": 5,
        }
        command: list[str | Path] = [self.cluster.programs / "helm", "template", "dra-agent", CHART, "--values", "-"]
        command += ["--show-only", "templates/webhook.yaml"]
        text = yaml.safe_dump({"webhook": values})
        rendered = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout
        (body,) = (found for found in yaml.safe_load_all(rendered) if found["kind"] == "ValidatingWebhookConfiguration")
        for asked in body["webhooks"]:
            path = asked["clientConfig"].pop("service")["path"]
            asked["clientConfig"]["url"] = f"https://{self.address}:{self.port}{path}"
        self.remove()
        self.cluster.api.create(CONFIGURATIONS, body)
        self.name = body["metadata"]["name"]

    def remove(self) -> None:
        for found in self.cluster.api.list(CONFIGURATIONS):
            self.cluster.api.delete(CONFIGURATIONS, found["metadata"]["name"])


@pytest.fixture
def webhook(cluster: Cluster, tmp_path: Path) -> Iterator[Webhook]:
    made = Webhook(cluster, tmp_path)
    made.start()
    yield made
    made.remove()
    if made.process.running:
        made.process.end()


def refused(namespace: Namespace, name: str = "wrong", config: dict[str, Any] = WRONG) -> str:
    """Why a claim is refused at once; empty where it is taken, and then it is gone again."""
    try:
        namespace.claim(name, request("gpu", "gpu"), config=[config])
    except RefusedError as error:
        return str(error)
    namespace.delete_claim(name)
    namespace.api.wait(lambda: not namespace.api.find(CLAIMS, name, namespace.name), "the claim is gone")
    return ""


def in_force(namespace: Namespace) -> None:
    """The API server takes up a new configuration within a second or so."""
    namespace.api.wait(lambda: refused(namespace), "the API server asks the webhook", every=0.2)


def test_mistakes_are_refused_when_they_are_applied(
    webhook: Webhook, agents: dict[str, Agent], namespace: Namespace
) -> None:
    webhook.configure("Fail")
    in_force(namespace)
    said = refused(namespace)
    assert "configuration.webhook.dra-agent.internal" in said and f"spec.devices.config[0].opaque.{MISTAKE}" in said
    with pytest.raises(
        RefusedError, match=r"spec\.spec\.devices\.config\[0\]\.opaque\.parameters\.timeSlicing\.interval"
    ):
        namespace.template("wrong", request("gpu", "gpu"), config=[WRONG])
    spec = {"config": [{"opaque": WRONG["opaque"]}]}
    with pytest.raises(RefusedError, match=r"spec\.config\[0\]\.opaque\.parameters\.timeSlicing\.interval"):
        namespace.api.create(CLASSES, {"metadata": {"name": "webhook-wrong"}, "spec": spec})
    # A class can be changed, and then it is looked at again.
    spec = {"config": [{"opaque": RIGHT["opaque"]}]}
    made = namespace.api.create(CLASSES, {"metadata": {"name": "webhook-right"}, "spec": spec})
    try:
        made["spec"]["config"][0]["opaque"]["parameters"]["timeSlicing"]["interval"] = "Lng"
        with pytest.raises(RefusedError, match="Lng"):
            namespace.api.replace(CLASSES, made)
    finally:
        namespace.api.delete(CLASSES, "webhook-right")
    # What is right goes its usual way, to the end of its pod.
    namespace.claim("right", request("gpu", "gpu"), config=[RIGHT, opaque("other.example", {"interval": "Lng"})])
    namespace.pod("user", claim="right", node="node-a")
    namespace.running("user")
    assert {"Long"} == {v for k, v in namespace.environment("user").items() if k.endswith("_TIME_SLICE")}


def test_without_the_webhook_only_its_own_objects_wait(webhook: Webhook, namespace: Namespace) -> None:
    webhook.configure("Fail")
    in_force(namespace)
    webhook.process.end()
    # Closed: nobody can say whether it is right. What is not for this driver is not held up.
    assert "failed calling webhook" in refused(namespace, config=RIGHT)
    assert refused(namespace, config=opaque("other.example", {"interval": "Lng"})) == ""
    namespace.claim("plain", request("gpu", "gpu"))
    webhook.configure("Ignore")
    # Open: taken now, judged when a pod starts.
    namespace.api.wait(lambda: not refused(namespace), "the API server lets it pass", every=0.2)


def test_a_renewed_certificate_interrupts_nothing(webhook: Webhook, namespace: Namespace) -> None:
    webhook.configure("Fail")
    in_force(namespace)
    webhook.secret.renew()
    webhook.said("certificate replaced")
    webhook.configure("Fail")
    namespace.api.wait(lambda: MISTAKE in refused(namespace), "the API server trusts the new certificate", every=0.2)
