"""The control plane for `drivers.py`: a real etcd and a real kube-apiserver, with counts of requests by user.

No scheduler and no kubelet run: claims are allocated by writing their status with administrator permissions, and the
probe acts as the kubelet. The requests of each user are read from the API server's audit log.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

ADMIN = "admin"
READY_TIMEOUT_S = 90.0
DRIVER_RULES = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "verbs": [f"{where}:{verb}" for where in ("associated-node", "arbitrary-node") for verb in ("patch", "update")],
    },
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
]
"""Permissions of a driver; `arbitrary-node` because the static tokens of a benchmark contain no node name."""


class ControlPlane:
    """etcd and kube-apiserver in one directory, for the given users; stopped by `close`."""

    user_groups = "benchmarks"
    """Groups of every user but the administrator, separated by commas."""

    def __init__(self, binaries: Path, folder: Path, users: list[str]) -> None:
        import httpx2

        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {user: f"token-of-{user}" for user in [ADMIN, *users]}
        self._audit = folder / "audit.log"
        folder.mkdir(parents=True)
        etcd_port, peer_port, self._port = free_ports(3)
        etcd = f"http://127.0.0.1:{etcd_port}"
        try:
            self._start_etcd(binaries, etcd, f"http://127.0.0.1:{peer_port}")
            self._start_apiserver(binaries, etcd)
            certificate = self._certificate()
            self._http = httpx2.Client(
                base_url=self._server,
                headers={"Authorization": f"Bearer {self._tokens[ADMIN]}"},
                verify=ssl.create_default_context(cafile=str(certificate)),
                timeout=30,
            )
            self._wait_ready()
            self._allow(users)
        except BaseException:
            self.close()
            raise

    @property
    def _server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig for one of the users and return its path."""
        path = self._folder / f"{user}.kubeconfig"
        cluster = {"server": self._server, "certificate-authority": str(self._folder / "certs/apiserver.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path

    def ask(self, verb: str, path: str, body: object = None) -> dict[str, Any]:
        """Send one request as the administrator; raise RuntimeError with the API server's message if it fails."""
        response = self._http.request(verb, path, json=body)
        if response.status_code >= 400:
            raise RuntimeError(f"{verb} {path}: {response.status_code} {response.text}")
        answer: dict[str, Any] = response.json()
        return answer

    def requests(self, user: str) -> Counter[str]:
        """Count a user's previous requests by verb; a watch counts when it starts."""
        counted: Counter[str] = Counter()
        with self._audit.open() as lines:
            for line in lines:
                # The last line may be incomplete.
                if not line.endswith("\n"):
                    continue
                event = json.loads(line)
                begun = event["stage"] == ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete")
                if begun and event["user"]["username"] == user:
                    counted[event["verb"]] += 1
        return counted

    def close(self) -> None:
        """Stop all processes in reverse order."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start_etcd(self, binaries: Path, client: str, peer: str) -> None:
        flags = {
            "data-dir": self._folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self._run("etcd", [binaries / "etcd", *_flags(flags), "--unsafe-no-fsync"])

    def _start_apiserver(self, binaries: Path, etcd: str) -> None:
        key = self._folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = [
            f'{token},{user},{user},"{"system:masters" if user == ADMIN else self.user_groups}"'
            for user, token in self._tokens.items()
        ]
        (self._folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
        policy: dict[str, Any] = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        policy["rules"] = [
            {"level": "Metadata", "users": [user for user in self._tokens if user != ADMIN]},
            {"level": "None"},
        ]
        (self._folder / "audit.json").write_text(json.dumps(policy))
        flags = {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "secure-port": self._port,
            "cert-dir": self._folder / "certs",
            "authorization-mode": "Node,RBAC",
            "token-auth-file": self._folder / "tokens.csv",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.96.0.0/16",
            "audit-policy-file": self._folder / "audit.json",
            "audit-log-path": self._audit,
        }
        self._run("kube-apiserver", [binaries / "kube-apiserver", *_flags(flags)])

    def _run(self, name: str, command: list[object]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)

    def _certificate(self) -> Path:
        path = self._folder / "certs/apiserver.crt"
        self._until(path.is_file, "kube-apiserver has no certificate")
        return path

    def _wait_ready(self) -> None:
        import httpx2

        def ready() -> bool:
            try:
                return bool(self._http.get("/readyz").status_code == 200)
            except httpx2.TransportError:
                return False

        self._until(ready, "kube-apiserver is not ready")

    def _until(self, condition: Any, otherwise: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended; see its log in {self._folder}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{otherwise} after {READY_TIMEOUT_S:.0f} s; see its log in {self._folder}")
            time.sleep(0.1)

    def _allow(self, users: list[str]) -> None:
        group = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "driver"}}
        self.ask("POST", f"/apis/{group}/v1/clusterroles", {**role, "rules": DRIVER_RULES})
        binding = {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "drivers"}}
        subjects = [{"apiGroup": group, "kind": "User", "name": user} for user in users]
        refers = {"apiGroup": group, "kind": "ClusterRole", "name": "driver"}
        path = f"/apis/{group}/v1/clusterrolebindings"
        self.ask("POST", path, {**binding, "subjects": subjects, "roleRef": refers})


def free_ports(count: int) -> list[int]:
    """Find unused ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _flags(values: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
