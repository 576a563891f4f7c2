"""Variants of the chart that set every value, and their decoding with the types of one version of Kubernetes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.rendering import ROOT
from oracle import go

ORACLE = ROOT / "tests/oracle/manifests"
MODULES = {"1.34": "v1.34.mod", "1.35": "v1.35.mod", "1.36": "v1.36.mod", "1.37": "go.mod"}
OTHER_KINDS = frozenset(("PodMonitor", "PrometheusRule", "ServiceMonitor"))
OPERATOR = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in sorted(OTHER_KINDS))
"""Types of the Prometheus Operator, which Kubernetes does not have."""

_POOL_SELECTOR = {"example.com/pool": "host"}
_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}
_RESOURCES = {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"cpu": 1, "memory": "512Mi"}}
_PEER = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "driverName": "gpu.example.com",
        "config": '[[inventory.partition]]\nmode = "mig"\nwhen = "true"\n',
        "configCheck": {"hook": True, "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
        "simulate": "dgx-h100",
        "logLevel": "debug",
        "logFormat": "text",
        "claimStatus": "all",
        "podEviction": "evict",
        "logind": True,
        "bindingConditions": True,
        "podNotices": True,
        "podResources": True,
        "nodeLabels": "node",
        "secondManager": "publish",
        "image": {"repository": "a.example/b", "tag": "1", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "kubeletDir": "/k",
        "cdiDir": "/cdi",
        "staticCdiDir": "/static",
        "stateDir": "/state",
        "nodes": "accelerators",
        "acceleratorLabels": ["example.com/gpu"],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}],
        "avoidNodeLabels": {"a": "c"},
        "affinity": _AFFINITY,
        "pools": [
            {
                "name": "host",
                "nodeSelector": _POOL_SELECTOR,
                "hostNetwork": True,
                "privileged": True,
                "hostPID": True,
                "updateStrategy": {"maxUnavailable": 3},
            }
        ],
        "runtimeClassName": "nvidia",
        "nvidia": {"driverRoot": "auto"},
        "apiServer": {"host": "api.example.com", "port": 6443},
        "metrics": {
            "address": "[::]",
            "port": 9000,
            "healthPort": 9001,
            "tlsSecret": "metrics-tls",
            "tlsConfig": {"insecureSkipVerify": True},
            "tokenSecret": "metrics-token",
            "tokenKey": "key",
            "podMonitor": {
                "create": True,
                "labels": {"a": "b"},
                "interval": "30s",
                "scrapeTimeout": "5s",
                "relabelings": [{"action": "labeldrop", "regex": "a"}],
                "metricRelabelings": [{"action": "labeldrop", "regex": "b"}],
            },
            "serviceMonitor": {"create": True, "labels": {"a": "b"}, "interval": "30s"},
            "dashboards": {"create": True, "labels": {"dashboards": "gpu"}, "annotations": {"grafana_folder": "GPUs"}},
            "prometheusRule": {
                "create": True,
                "labels": {"a": "b"},
                "disabled": ["DraAgentFieldsDropped"],
                "runbookUrl": "https://docs.example.com/alerts.html",
            },
        },
        "networkPolicy": {
            "metricsFrom": [_PEER],
            "apiServerPorts": [6443],
            "apiServerCidrs": ["192.0.2.0/24", "2001:db8::/64"],
            "dns": {"ports": [5353], "to": [_PEER]},
            "egress": [{"to": [_PEER], "ports": [{"protocol": "TCP", "port": 4318}]}],
            "metadataService": False,
        },
        "flowControl": {"create": True, "matchingPrecedence": 700, "claimShares": 5, "shares": 6},
        "serviceAccount": {"name": "x", "annotations": {"a": "b"}},
        "criticalPodsQuota": {"create": True, "pods": 7},
        "deviceClasses": {
            "enabled": ["gpu", "mig", "nvidia-gpu"],
            "prefix": "x-",
            "labels": {"a": "b"},
            "extendedResourceNames": {"gpu": "example.com/gpu", "nvidia-gpu": "nvidia.com/gpu"},
        },
        "resources": _RESOURCES,
        "priorityClassName": "gold",
        "updateStrategy": {"maxSurge": 3},
        "minReadySeconds": 3,
        "revisionHistoryLimit": 3,
        "terminationGracePeriodSeconds": 300,
        "seLinuxOptions": {"type": "spc_t"},
        "mig": "partition",
        "podLabels": {"c": "d"},
        "podAnnotations": {"c": "d"},
        "extraArgs": ["--device-metadata"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        "nameOverride": "agent",
        "fullnameOverride": "other",
    },
    "nothing optional": {
        "claimStatus": "off",
        "cordon": False,
        "nodeCondition": False,
        "staticCdiDir": "",
        "networkPolicy": {"create": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "x"},
        "admissionPolicy": {"create": False},
        "configurationPolicy": {"create": False},
        "deviceClasses": {"create": False},
        "hostNetwork": True,
        "privileged": True,
        "hostPID": True,
        "updateStrategy": {"type": "OnDelete", "maxUnavailable": 1},
        "defaultPool": {"create": False},
        "pools": [{"name": "host", "nodeSelector": _POOL_SELECTOR}],
    },
}


@dataclass(frozen=True)
class Decoded:
    """The result for one object: its kind, and why the types of a version refuse it (empty: they accept it)."""

    kind: str
    error: str


def program(version: str) -> Path:
    """Build the oracle with the types of a version (`1.34`), or skip the test."""
    return go.build(ORACLE, f"manifests-{version}", f"-modfile={MODULES[version]}")


def decode(oracle: Path, manifests: str) -> list[Decoded]:
    """Decode YAML documents strictly: unknown and repeated fields are errors."""
    done = subprocess.run([oracle], input=manifests, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [Decoded(one["kind"], one.get("error", "")) for one in found]


def refused(oracle: Path, manifests: str) -> list[Decoded]:
    """Return the objects of Kubernetes' own kinds that the types of a version refuse."""
    found = decode(oracle, manifests)
    assert len(found) >= 2, "the chart renders more"
    return [one for one in found if one.error and one.kind not in OTHER_KINDS]
