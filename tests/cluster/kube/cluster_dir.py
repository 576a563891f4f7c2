"""The directory and the addresses of a cluster. Several clusters can run side by side.

The addresses are of 198.18.0.0/15, which RFC 2544 reserves for benchmarks; they are added to the loopback interface,
because the kubelet rejects 127.0.0.0/8 as a node address.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import subprocess
import sys
from pathlib import Path

from cluster.kube import cleanup

BASE = Path("/var/lib/dra-cluster")
"""Short, because the kubelet's sockets below it are limited to 107 bytes. Not /run: that may be mounted noexec."""
MAX_CLUSTERS = 64
TESTS = Path(__file__).resolve().parents[2]
DONE = b"done"
_NETWORK = ipaddress.ip_network("198.18.0.0/15")


class ClusterDir:
    """One of MAX_CLUSTERS directories and address ranges, locked while the run or its reaper lives."""

    def __init__(self, number: int, lock: int) -> None:
        self.number = number
        self._lock = lock
        self._reaper: subprocess.Popen[bytes] | None = None
        self.directory = BASE / str(number)
        self._base = int(_NETWORK.network_address) + number * 2048
        """Every cluster has eight /24: services, nodes, and the pods of six nodes."""

    @classmethod
    def acquire(cls) -> ClusterDir:
        """Acquire a free directory; the remains of a killed run are removed."""
        BASE.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(MAX_CLUSTERS):
            if (cluster_dir := cls.lock(number)) is None:
                continue
            if cluster_dir.left_running.exists():
                cluster_dir.release()
                continue
            cluster_dir.clear()
            cluster_dir.directory.mkdir(mode=0o700)
            cluster_dir.start_reaper()
            return cluster_dir
        raise AssertionError(
            f"{MAX_CLUSTERS} clusters run already; `make cluster-down` stops the one that was left running"
        )

    @classmethod
    def lock(cls, number: int) -> ClusterDir | None:
        """Lock a directory by its number; None if another process holds it."""
        lock = os.open(BASE / f"{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(number, lock)

    @property
    def left_running(self) -> Path:
        """The file that marks a cluster as left running on purpose."""
        return self.directory / "left-running"

    @property
    def service_network(self) -> str:
        """Cluster IPs."""
        return f"{ipaddress.ip_address(self._base)}/24"

    @property
    def api_address(self) -> str:
        """The cluster IP of the service `kubernetes`, where the API server itself listens: no kube-proxy is needed."""
        return str(ipaddress.ip_address(self._base + 1))

    @property
    def dns_address(self) -> str:
        """The name server of pods; no server listens there."""
        return str(ipaddress.ip_address(self._base + 10))

    @property
    def webhook_address(self) -> str:
        """The cluster IP for the Service of a webhook, where the process of the webhook itself listens."""
        return str(ipaddress.ip_address(self._base + 11))

    @property
    def etcd_address(self) -> str:
        """A loopback address, so that no pod reaches etcd."""
        return f"127.0.18.{self.number + 1}"

    def node_address(self, index: int) -> str:
        """The InternalIP of a node, counted from 0."""
        return str(ipaddress.ip_address(self._base + 256 + index + 1))

    def pod_network(self, index: int) -> str:
        """The address range of a node's pods."""
        return f"{ipaddress.ip_address(self._base + 256 * (2 + index))}/24"

    def addresses(self) -> list[str]:
        """Return the addresses that an interface of this host needs."""
        return [self.api_address, self.webhook_address, *(self.node_address(index) for index in range(6))]

    def add_addresses(self) -> None:
        """Add the addresses to the loopback interface."""
        for address in self.addresses():
            subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)

    def clear(self) -> None:
        """Remove every process, container and mount of this cluster, its directory and its addresses."""
        cleanup.clear(self.directory)
        for address in self.addresses():
            subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=False, capture_output=True)

    def start_reaper(self) -> None:
        """Start a process that clears the directory if this process ends without `release`."""
        command = [sys.executable, "-m", "cluster.kube.reaper", str(self.number), str(self._lock)]
        self._reaper = subprocess.Popen(
            command, cwd=TESTS, stdin=subprocess.PIPE, pass_fds=(self._lock,), start_new_session=True
        )

    def release(self) -> None:
        """Unlock the directory. Its content stays: call `clear` before, unless the cluster is to be left running."""
        if self._reaper is not None:
            self._reaper.communicate(DONE)
        os.close(self._lock)
