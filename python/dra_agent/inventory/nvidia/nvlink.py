"""The NVLinks between the GPUs of this host.

Two GPUs are linked if the driver reports that one reaches the memory of the other by NVLink (nvmlDeviceGetP2PStatus),
and both have active links to each other or to switches. Neither alone is enough: a link that is up does not show that
the fabric manager has programmed a route, and the status names no number of links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_agent.diagnostic import Diagnostic, UnreadDiagnostic
from dra_agent.errors import RetryableError
from dra_agent.inventory.interconnect import Interconnect, group_gpus, pair
from dra_agent.inventory.nvidia.nvml_client import (
    CallTimeoutError,
    NotSupportedError,
    NvmlBusyError,
    NvmlClient,
)

MAX_HANGS = 2
"""Maximum hung calls in one scan before the links of the remaining GPUs are not read."""
_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_REACHABLE = 0
"""NVML_P2P_STATUS_OK."""


class NvLinks:
    """The links of the last scan, and those of GPUs that did not respond in it, or that a claim binds to vfio-pci."""

    def __init__(self, nvml: NvmlClient, functions: Path) -> None:
        """`functions` is the directory of the PCI functions."""
        self._nvml = nvml
        self._functions = functions
        self._ends: dict[str, Counter[str]] = {}
        """By GPU: the number of active links to each other end: the address of a GPU, or "" for all switches."""
        self._reachable: dict[tuple[str, str], bool] = {}
        self._groups: dict[str, Interconnect] = {}

    def read(self, handles: Mapping[str, Any], problems: list[Diagnostic]) -> None:
        """Read the links between the GPUs at these addresses, which responded in this scan; never raises.

        A GPU with links that NVML cannot read is in no group. A library that hangs changes no links.
        """
        self._forget_removed()
        addresses = sorted(handles)
        ends: dict[str, Counter[str]] = {}
        reachable: dict[tuple[str, str], bool] = {}
        hangs = 0
        for number, address in enumerate(addresses if len(addresses) > 1 else ()):
            try:
                ends[address] = self._read_gpu(address, handles, addresses[number + 1 :], reachable)
            except NvmlBusyError:
                continue  # the agent changes its MIG mode or instances: the last links stay
            except NotSupportedError:
                ends[address] = Counter()
            except RetryableError as error:
                message = f"its NVLinks cannot be read: {error.message}"
                problems.append(UnreadDiagnostic(address, message, error.hint, severity="warning"))
                if not isinstance(error, CallTimeoutError):
                    ends[address] = Counter()
                elif (hangs := hangs + 1) == MAX_HANGS:
                    break
        # Last: in MIG mode, a GPU reaches no other one. A change of the mode since the GPU was read must not count.
        whole = {address for address in ends if self._is_whole(address, handles[address])}
        self._ends |= {address: found for address, found in ends.items() if address in whole}
        self._reachable |= {both: known for both, known in reachable.items() if whole.issuperset(both)}
        self._groups = group_gpus(self._links())

    def _forget_removed(self) -> None:
        """Forget GPUs without a PCI function. One that a claim binds to vfio-pci changes no group of the others."""
        present = {address for address in self._ends if (self._functions / address).exists()}
        self._ends = {address: ends for address, ends in self._ends.items() if address in present}
        self._reachable = {both: known for both, known in self._reachable.items() if present.issuperset(both)}

    def _read_gpu(
        self, address: str, handles: Mapping[str, Any], others: list[str], reachable: dict[tuple[str, str], bool]
    ) -> Counter[str]:
        """Return the ends of a GPU's links, and add to `reachable` which of the others it reaches."""
        ends = self._nvml.call("read_nvlinks", handles[address], about=address)
        if ends and others:
            among = [handles[other] for other in others]
            statuses = self._nvml.call("read_nvlink_peers", handles[address], *among, about=address)
            for other, status in zip(others, statuses, strict=True):
                reachable[pair(address, other)] = status == _REACHABLE
        return Counter(_end(int(kind), str(bus_id)) for kind, bus_id in ends)

    def _is_whole(self, address: str, handle: Any) -> bool:
        """Return whether a GPU is not in MIG mode now; False if it does not respond any more."""
        try:
            mode, _ = self._nvml.call("nvmlDeviceGetMigMode", handle, about=address)
        except CallTimeoutError:
            return False
        except RetryableError:
            return True  # it has no MIG
        return not mode

    def interconnect(self, address: str) -> Interconnect | None:
        """Return the group of a GPU; None if it has none, or nothing is known."""
        return self._groups.get(address)

    def _links(self) -> dict[tuple[str, str], int | None]:
        links: dict[tuple[str, str], int | None] = {}
        for one, other in self._reachable:
            if self._reachable[one, other] and (width := self._width(one, other)):
                links[one, other] = width
        return links

    def _width(self, one: str, other: str) -> int:
        """Return the links between two GPUs. Behind switches, all links of both lead to the other."""
        ends, back = self._ends.get(one, Counter()), self._ends.get(other, Counter())
        return min(ends[other], back[one]) + min(ends[""], back[""])


def _end(kind: int, bus_id: str) -> str:
    """Return the address as sysfs writes it; NVML has eight digits of the domain. "?" for an unknown end."""
    if kind == _SWITCH:
        return ""
    domain, _, rest = bus_id.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.lower()}"
    except ValueError:
        return "?"
