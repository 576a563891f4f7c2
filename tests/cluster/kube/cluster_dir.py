"""Where a cluster is on the machine: its directory and its addresses. Several clusters can run side by side.

The addresses are of 198.18.0.0/15, which RFC 2544 sets aside for tests of networks; they are put on the loopback
interface, because the kubelet refuses 127.0.0.0/8 as a node's address.
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
PLACES = 64
TESTS = Path(__file__).resolve().parents[2]
DONE = b"done"
_NETWORK = ipaddress.ip_network("198.18.0.0/15")


class Place:
    """One of PLACES directories and address ranges, held by a file lock as long as the run and its keeper live."""

    def __init__(self, number: int, lock: int) -> None:
        self.number = number
        self._lock = lock
        self._keeper: subprocess.Popen[bytes] | None = None
        self.directory = BASE / str(number)
        self._base = int(_NETWORK.network_address) + number * 2048
        """Every cluster has eight /24: services, nodes, and the pods of six nodes."""

    @classmethod
    def take(cls) -> Place:
        """Take a place that nobody has; what a killed predecessor left in it is removed."""
        BASE.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(PLACES):
            if (place := cls.lock(number)) is None:
                continue
            if place.left.exists():
                place.release()
                continue
            place.clear()
            place.directory.mkdir(mode=0o700)
            place.keep()
            return place
        raise AssertionError(f"{PLACES} clusters run already; `make cluster-down` ends the one that was left running")

    @classmethod
    def lock(cls, number: int) -> Place | None:
        """Lock a place by its number; None where another process has it."""
        lock = os.open(BASE / f"{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(number, lock)

    @property
    def left(self) -> Path:
        """The file that says that this cluster was left running on purpose."""
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
        """What pods get as their name server; nobody answers there."""
        return str(ipaddress.ip_address(self._base + 10))

    @property
    def etcd_address(self) -> str:
        """A loopback address, so that no pod reaches etcd."""
        return f"127.0.18.{self.number + 1}"

    def node_address(self, index: int) -> str:
        """The InternalIP of a node, counted from 0."""
        return str(ipaddress.ip_address(self._base + 256 + index + 1))

    def pod_network(self, index: int) -> str:
        """The addresses of a node's pods."""
        return f"{ipaddress.ip_address(self._base + 256 * (2 + index))}/24"

    def addresses(self) -> list[str]:
        """Those that must be on an interface of this host."""
        return [self.api_address, *(self.node_address(index) for index in range(6))]

    def add_addresses(self) -> None:
        """Put the addresses on the loopback interface."""
        for address in self.addresses():
            subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)

    def clear(self) -> None:
        """End every process, container and mount of this place and remove its directory and addresses."""
        cleanup.clear(self.directory)
        for address in self.addresses():
            subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=False, capture_output=True)

    def keep(self) -> None:
        """Have the place cleared when this process ends without `release`: it may be killed."""
        command = [sys.executable, "-m", "cluster.kube.reaper", str(self.number), str(self._lock)]
        self._keeper = subprocess.Popen(
            command, cwd=TESTS, stdin=subprocess.PIPE, pass_fds=(self._lock,), start_new_session=True
        )

    def release(self) -> None:
        """Let others have the place. What is in it stays: `clear` comes before, unless it is to be left running."""
        if self._keeper is not None:
            self._keeper.communicate(DONE)
        os.close(self._lock)
