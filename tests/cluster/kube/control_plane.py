"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager as processes on the host."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.kube.cluster_dir import ClusterDir

from . import pki
from .api import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Api, ApiStatusError
from .process import Process, until

API_PORT = 443
KUBELETS = "dra-cluster:kubelets"
"""The group of the kubelets' own credentials, in addition to system:nodes."""


@dataclass
class ControlPlane:
    """The four processes and all credentials."""

    cluster_dir: ClusterDir
    programs: Path
    nodes: tuple[str, ...]
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates of all four, and of the kubelets."""
    runtime_config: Mapping[str, bool] = field(default_factory=dict)
    """API versions on or off: {"resource.k8s.io/v1beta1": True}."""
    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Flags of one of them that replace those of this module: {"kube-scheduler": {"v": 4}}."""

    def __post_init__(self) -> None:
        self.directory = self.cluster_dir.directory / "control-plane"
        self.keys = pki.make(self.directory / "pki", self.cluster_dir.api_address)
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "kube-scheduler", "kube-controller-manager")}
        for node in self.nodes:
            self.tokens |= {f"kubelet:{node}": secrets.token_hex(16), f"node:{node}": secrets.token_hex(16)}
        self._write_tokens()
        self.api = Api(self.cluster_dir.api_address, API_PORT, self.keys.authority, self.tokens["admin"])
        self.etcd = self._process("etcd", self._etcd_flags())
        self.apiserver = self._process("kube-apiserver", self._apiserver_flags())
        self.scheduler = self._process("kube-scheduler", self._scheduler_flags())
        self.controllers = self._process("kube-controller-manager", self._controller_flags())

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes in start order."""
        return self.etcd, self.apiserver, self.scheduler, self.controllers

    def start(self) -> None:
        """Start them; return when the API server serves."""
        self.etcd.start()
        self.apiserver.start()
        self.ready()
        self.scheduler.start()
        self.controllers.start()
        self._let_kubelets_read_claims()

    def ready(self) -> None:
        """Wait until the API server is ready."""

        def reports_ok() -> bool:
            self.etcd.check_running()
            self.apiserver.check_running()
            return self.api.text("GET", "/readyz") == "ok"

        def ready() -> bool:
            try:
                return reports_ok()
            except ApiStatusError:
                return False

        until(ready, "the API server is ready")

    def restart_apiserver(self) -> None:
        """Restart the API server; return when it serves."""
        self.apiserver.end()
        self.apiserver.start()
        self.ready()

    def stop(self) -> None:
        """Kill them; no data has to be kept."""
        for process in reversed(self.processes):
            process.kill()

    def kubeconfig(
        self, user: str, path: Path | None = None, *, token: str | None = None, token_file: Path | None = None
    ) -> Path:
        """Write a kubeconfig for one of `tokens`, with another token, or with a token file."""
        path = path or self.directory / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": f"https://{self.cluster_dir.api_address}:{API_PORT}"}
        credentials = {"tokenFile": str(token_file)} if token_file else {"token": token or self.tokens[user]}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": cluster | {"certificate-authority": str(self.keys.authority)}},
            ],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        # JSON is YAML.
        path.write_text(json.dumps(content, indent=2))
        return path

    def _process(self, name: str, flags: Mapping[str, object]) -> Process:
        given = {**flags, **self.flags.get(name, {})}
        command = [str(self.programs / name), *(f"--{flag}={value}" for flag, value in given.items())]
        return Process(name, command, self.directory / f"{name}.log", self.cluster_dir.directory)

    def _write_tokens(self) -> None:
        lines = [f'{self.tokens["admin"]},admin,admin,"system:masters"']
        lines += [f"{self.tokens[name]},system:{name},{name}" for name in ("kube-scheduler", "kube-controller-manager")]
        for node in self.nodes:
            user = f"system:node:{node}"
            lines.append(f'{self.tokens[f"kubelet:{node}"]},{user},{user},"system:nodes,{KUBELETS}"')
            lines.append(f'{self.tokens[f"node:{node}"]},{user},{user},"system:nodes"')
        file = self.directory / "tokens.csv"
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")

    def _etcd_flags(self) -> dict[str, object]:
        client, peer = (f"http://{self.cluster_dir.etcd_address}:{port}" for port in (2379, 2380))
        return {
            "data-dir": self.directory / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _apiserver_flags(self) -> dict[str, object]:
        server, client = self.keys.server, self.keys.client
        return {
            "etcd-servers": f"http://{self.cluster_dir.etcd_address}:2379",
            "bind-address": self.cluster_dir.api_address,
            "advertise-address": self.cluster_dir.api_address,
            "secure-port": API_PORT,
            "service-cluster-ip-range": self.cluster_dir.service_network,
            "tls-cert-file": server[0],
            "tls-private-key-file": server[1],
            "client-ca-file": self.keys.authority,
            "kubelet-certificate-authority": "",
            "kubelet-client-certificate": client[0],
            "kubelet-client-key": client[1],
            "kubelet-preferred-address-types": "InternalIP",
            "token-auth-file": self.directory / "tokens.csv",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.keys.service_accounts,
            "service-account-signing-key-file": self.keys.service_accounts,
            "allow-privileged": "true",
            "shutdown-delay-duration": "0s",
            **self._gate_flag(),
            **({"runtime-config": settings(self.runtime_config)} if self.runtime_config else {}),
        }

    def _scheduler_flags(self) -> dict[str, object]:
        configuration = self.directory / "scheduler.json"
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("kube-scheduler")), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": False},
            # A pod that did not fit is retried after 1 s, 2 s, 2 s, ... instead of up to 10 s.
            "podMaxBackoffSeconds": 2,
        }
        configuration.write_text(json.dumps(content))
        return {"config": configuration, "secure-port": 0, "v": 2, **self._gate_flag()}

    def _controller_flags(self) -> dict[str, object]:
        return {
            "kubeconfig": self.kubeconfig("kube-controller-manager"),
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "service-account-private-key-file": self.keys.service_accounts,
            "root-ca-file": self.keys.authority,
            "secure-port": 0,
            "kube-api-qps": 300,
            "kube-api-burst": 300,
            "v": 2,
            **self._gate_flag(),
        }

    def _gate_flag(self) -> dict[str, object]:
        return {"feature-gates": settings(self.gates)} if self.gates else {}

    def _let_kubelets_read_claims(self) -> None:
        # The Node authorizer lets a kubelet read a claim only after its graph has the bound pod; a kubelet that asks
        # earlier retries after 60 to 90 s. The permission is for kubelets only: an agent with a node's credentials
        # (`node:NAME`) has the permissions of any other cluster.
        name = "dra-cluster-kubelets-read-claims"
        rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}]
        group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": KUBELETS}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        self.api.create(CLUSTER_ROLES, {"metadata": {"name": name}, "rules": rules})
        self.api.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [group]})


def settings(values: Mapping[str, bool]) -> str:
    """Return the value of a flag such as `--feature-gates`."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in values.items())
