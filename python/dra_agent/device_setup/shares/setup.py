"""Device setup of shares: the mechanism that limits each share of a claim to its amount of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from dra_agent import _native
from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.container_hook import LIMIT_TASK
from dra_agent.device_setup.mps.sharing import MpsClient, MpsSharing
from dra_agent.device_setup.shares.limiter import Limiter
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device
from dra_agent.inventory.shares import MEMORY, MULTIPROCESSORS, limit_mechanism
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError


class ShareConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of a share of a GPU.

    The operator and the scheduler determine what protects other claims: the amount of memory, and its enforcement.
    """

    active_thread_percentage: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    """MPS: the maximum percentage of the GPU's multiprocessors for each process of the share, if it is less than the
    share of multiprocessors that the claim requests; 1 to 100."""


_MIB = 1 << 20
_MPS = "mps"
_BY_CGROUP = frozenset({"nvml-cgroup", "dmem"})


class ShareSetup:
    """Limits the memory of shares with the mechanism that the operator's rule selects; thread-safe."""

    kind: Kind = (API_VERSION, "ShareConfig")
    parameters = ShareConfig

    def __init__(self, mps: MpsSharing, limiter: Limiter) -> None:
        self.mps = mps
        self.limiter = limiter

    def hook_tasks(self) -> Mapping[str, Callable[[bytes], bool]]:
        """See dra_agent.prepare.setup.HookHandler."""
        return {LIMIT_TASK: self.limiter.apply}

    def supervise(self) -> dict[str, str]:
        """See dra_agent.prepare.setup.DaemonOwner."""
        return self.mps.supervise()

    def default(self, device: Device) -> ShareConfig | None:
        """Set up every share with limited memory."""
        return None if limit_mechanism(device) in (None, "none") else ShareConfig()

    def check(self, device: Device, parameters: ShareConfig) -> None:
        """Accept devices that are published as shares, and parameters that their mechanism supports.

        Raises:
            UnsuitableError: The device is not a share.
            PermanentError: `activeThreadPercentage` without MPS.
        """
        mechanism = limit_mechanism(device)
        if mechanism is None:
            raise UnsuitableError("kind: ShareConfig is for devices that are offered in shares (inventory.share)")
        if parameters.active_thread_percentage is not None and mechanism != _MPS:
            raise PermanentError(
                f"activeThreadPercentage: only MPS limits multiprocessors, and here memoryEnforcement is {mechanism}",
                hint="leave it out, or choose devices with memoryEnforcement mps",
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: ShareConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Limit each share to its amount; a repeat uses the recorded mechanism.

        After a restart of the host, the device may be described without its driver or the mechanism.
        """
        _one_server(devices)
        recorded: dict[str, str] = previous or {}
        record: dict[str, str] = {}
        edits: dict[str, ContainerEdits] = {}
        for item in devices:
            mechanism = recorded.get(item.key) or limit_mechanism(item.device)
            if item.allocated.share_id is None or mechanism is None:
                continue  # only this claim has it: an API server without consumable capacity allocates it as a whole
            amount = _amount(item, MEMORY)
            if mechanism == _MPS:
                client = MpsClient(amount // _MIB, _percentage(item, parameters))
                edits[item.key] = self.mps.attach(uid, item, client, deadline)
            elif mechanism in _BY_CGROUP:
                edits[item.key] = self.limiter.grant(uid, item, mechanism, amount, deadline)
            record[item.key] = mechanism
        return SetupOutcome(record, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Release each share."""
        for key in keys:
            self.mps.detach(uid, key, deadline)
        self.limiter.revoke(uid, deadline)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: ShareConfig, deadline: Deadline) -> None:
        """Do the same: the shares are on disk before a change."""
        self.tear_down(uid, keys, None, deadline)

    def noted(self, uid: str) -> Sequence[str]:
        """Return the keys of the shares that the state files list for the claim."""
        return list(dict.fromkeys((*self.mps.noted(uid), *self.limiter.noted(uid))))


def _one_server(devices: Sequence[SetupDevice]) -> None:
    """Reject two shares through MPS for one request: a process is the client of one daemon, and so of one GPU."""
    key_by_request: dict[str, str] = {}
    for item in devices:
        if item.allocated.share_id is None or limit_mechanism(item.device) != _MPS:
            continue
        for request in item.allocated.requests:
            other = key_by_request.setdefault(request, item.key)
            if other != item.key:
                raise PermanentError(
                    f"request {request} has shares of {other.partition('/')[0]} and {item.device.name} through MPS, "
                    "and a process can be a client of one control daemon only",
                    hint="request one share per request, and give each container one request",
                )


def _percentage(item: SetupDevice, parameters: ShareConfig) -> int | None:
    configured = parameters.active_thread_percentage
    requested = _amount(item, MULTIPROCESSORS)
    capacity = item.device.capacity.get(MULTIPROCESSORS)
    if not requested or capacity is None:
        return configured
    part = max(1, 100 * requested // _native.quantity_value(capacity.value))
    return part if configured is None else min(part, configured)


def _amount(item: SetupDevice, capacity: str) -> int:
    text = item.allocated.consumed_capacity.get(capacity)
    return _native.quantity_value(text) if text is not None else 0
