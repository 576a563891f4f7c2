"""`top.sock` in the state directory: the last values of a running agent, for `dra-agent top`.

A request samples nothing. In a rolling update the newest agent, which samples, is the last one that binds the socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dra_agent.control_socket.protocol import call, decode_request
from dra_agent.control_socket.server import Server
from dra_agent.inventory.model import device_key
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.model import COUNTERS, DeviceSample

if TYPE_CHECKING:
    from dra_agent.inventory.model import Inventory
    from dra_agent.prepare.ledger import LedgerEntry
    from dra_agent.telemetry.sampler import TelemetrySnapshot

SOCKET = "top.sock"
"""Its name is no longer than those of other sockets: paths of sockets have a limit (unix(7))."""
MAX_LINE_BYTES = 4096
"""Bytes of one request."""
RESPONSE_TIMEOUT_S = 10.0


class Current(msgspec.Struct, tag_field="op", tag="current", forbid_unknown_fields=True):
    """Return the current values."""


class DeviceValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device, and what is known of it."""

    device: str
    family: str
    product: str = ""
    claims: tuple[str, ...] = ()
    """NAMESPACE/NAME of the claims that hold it."""
    values: DeviceSample = DeviceSample()
    node: str = ""
    """Empty: this host."""
    pool: str = ""
    """Where the device was read from /metrics."""


class ClaimValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim on one device, and the values that are its own."""

    namespace: str
    name: str
    device: str
    uid: str = ""
    values: DeviceSample = DeviceSample()
    """Its counters start with the first sample of the claim."""
    idle_seconds: float | None = None
    node: str = ""
    """Empty: this host."""


class CurrentValues(msgspec.Struct, frozen=True):
    """The response."""

    node: str
    interval_seconds: float
    age_seconds: float | None = None
    """Since the last sample; None: there is no current one."""
    devices: tuple[DeviceValues, ...] = ()
    claims: tuple[ClaimValues, ...] = ()
    failures: tuple[TelemetryFailure, ...] = ()


_requests: msgspec.json.Decoder[Current] = msgspec.json.Decoder(Current)


class TelemetryServer(Server):
    """Responds with the current values."""

    def __init__(
        self,
        state_dir: Path,
        node: str,
        interval_s: float,
        snapshot: Callable[[], TelemetrySnapshot],
        inventory: Callable[[], Inventory],
        entries: Callable[[], list[LedgerEntry]],
        now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """`now` returns seconds since boot."""
        self._node = node
        self._sampling_interval_s = interval_s
        self._snapshot = snapshot
        self._inventory = inventory
        self._entries = entries
        self._now = now
        super().__init__(state_dir / SOCKET, self._do, line_limit=MAX_LINE_BYTES)

    async def _do(self, line: bytes) -> Any:
        decode_request(line, _requests)
        snapshot = self._snapshot()
        age_s = self._now() - snapshot.sampled_at if snapshot.sampled_at else None
        return current_values(
            self._node, self._sampling_interval_s, age_s, snapshot, self._inventory(), self._entries()
        )


def current_values(
    node: str,
    interval_s: float,
    age_s: float | None,
    snapshot: TelemetrySnapshot,
    inventory: Inventory,
    entries: list[LedgerEntry],
) -> CurrentValues:
    """Return the values of devices that were sampled, and those of every claim on a device of this host.

    A claim that shares its device has what is counted for it by process, and no other values: they are not its own.
    """
    usage = {(one.claim.uid, one.device): one for one in snapshot.usage}
    shares = {(claim.uid, device): sample for (claim, device), sample in snapshot.shares.items()}
    holders: dict[str, list[str]] = {}
    claims: list[ClaimValues] = []
    for entry in entries:
        # A partition also holds a share of its GPU, with an empty request: its claim is one of the GPU's holders, and
        # has no value there.
        requested = {device_key(held.pool, held.device) for held in entry.devices if held.request}
        for key in dict.fromkeys(device_key(held.pool, held.device) for held in entry.devices):
            name = key[1]
            holders.setdefault(name, []).append(entry.full_name)
            if key not in requested:
                continue
            holder, counts = snapshot.holders.get(name), usage.get((entry.uid, name))
            is_own = holder is not None and holder.uid == entry.uid and entry.state == "completed"
            own = shares.get((entry.uid, name))
            sample = (own or snapshot.samples.get(name)) if is_own else None
            totals: dict[str, Any] = {
                counter: None if counts is None else counts.totals.get(counter) for counter in COUNTERS
            }
            claims.append(
                ClaimValues(
                    entry.namespace,
                    entry.name,
                    name,
                    entry.uid,
                    own or DeviceSample() if sample is None else msgspec.structs.replace(sample, **totals),
                    counts.idle_seconds if is_own and counts is not None else None,
                )
            )
    devices = []
    for device in inventory.devices:
        if device.name in snapshot.samples:
            product = device.attributes.get("productName")
            devices.append(
                DeviceValues(
                    device.name,
                    device.family,
                    (product.string if product is not None else None) or "",
                    tuple(holders.get(device.name, ())),
                    snapshot.samples[device.name],
                )
            )
    return CurrentValues(node, interval_s, age_s, tuple(devices), tuple(claims), snapshot.failures)


def query(state_dir: Path) -> CurrentValues:
    """Query the agent of a state directory; raises its error, or RetryableError if none responds with telemetry."""
    return msgspec.convert(call(state_dir / SOCKET, Current(), timeout=RESPONSE_TIMEOUT_S), CurrentValues)
