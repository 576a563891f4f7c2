"""Keeps the descriptions of the back ends by PCI function, so that a uevent costs as much as it changes.

This is the only place that decides what is described again. After uevents these are the functions that the events name,
those below them, those whose entry in the topology is another one, and those with other shared facts. A back end
that describes its functions together is asked for all of them if one has to be described again. Facts that change
without an event (a link, memory errors, instances of MIG) are found when everything is described again, at each health
check.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.backend import DeviceBackend, FunctionBackend
from dra_agent.inventory.model import Device
from dra_agent.topology.model import PciFunction


class _Description(NamedTuple):
    functions: tuple[PciFunction, ...]
    facts: Hashable
    """Facts that other functions share."""
    devices: tuple[Device, ...]
    problems: tuple[Diagnostic, ...]

    def kept_if_equal(self, before: _Description | None) -> _Description:
        """Return the devices of before if nothing changed: rules and slices work on an object only once."""
        if before is None or before.devices != self.devices or before.functions != self.functions:
            return self
        return self._replace(devices=before.devices)


class Descriptions:
    """The last descriptions of one host's functions."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Description]] = {}
        """By back end, then by address; those of functions that are described together have the address ""."""
        self._touched: Container[str] | None = None
        self._seen: set[str] = set()
        self._kept: list[str] = []

    def begin(self, touched: Container[str] | None) -> None:
        """Start a scan; `touched` are the addresses of functions with events, or None to describe everything again."""
        self._touched, self._seen, self._kept = touched, set(), []

    def end(self) -> frozenset[str]:
        """Drop back ends that were not called; return the names of the devices that were not described again."""
        for gone in self._known.keys() - self._seen:
            del self._known[gone]
        return frozenset(self._kept)

    def of(
        self,
        name: str,
        backend: DeviceBackend | FunctionBackend,
        functions: Sequence[PciFunction],
        problems: list[Diagnostic],
    ) -> list[Device]:
        """Return the devices of these functions; an exception of the back end is passed on."""
        self._seen.add(name)
        before = self._known.pop(name, {})  # if the back end fails, everything is described again
        if isinstance(backend, FunctionBackend):
            now = self._one_by_one(backend, functions, before, problems)
        else:
            now = {"": self._together(backend, functions, before.get(""))}
        self._known[name] = now
        for description in now.values():
            problems += description.problems
        return [device for description in now.values() for device in description.devices]

    def describes_again(
        self, name: str, backend: DeviceBackend | FunctionBackend, functions: Sequence[PciFunction]
    ) -> bool:
        """Return True if `of` will call a back end that describes its functions together."""
        known = self._known.get(name, {}).get("")
        return not isinstance(backend, FunctionBackend) and not self._is_kept(known, tuple(functions), None)

    def _is_kept(self, known: _Description | None, functions: tuple[PciFunction, ...], facts: Hashable) -> bool:
        touched = self._touched
        return (
            known is not None
            and touched is not None
            and known.functions == functions
            and known.facts == facts
            and not any(function.pci_address in touched for function in functions)
        )

    def _one_by_one(
        self,
        backend: FunctionBackend,
        functions: Sequence[PciFunction],
        before: dict[str, _Description],
        problems: list[Diagnostic],
    ) -> dict[str, _Description]:
        facts = backend.shared_facts(functions, problems, again=self._touched is None)
        now = {}
        for function in functions:
            known, fact = before.get(function.pci_address), facts.get(function.pci_address)
            if known is not None and self._is_kept(known, (function,), fact):
                self._kept += [device.name for device in known.devices]
                now[function.pci_address] = known
                continue
            found: list[Diagnostic] = []
            devices = (backend.describe(function, fact, found),)
            described = _Description((function,), fact, devices, tuple(found))
            now[function.pci_address] = described.kept_if_equal(known)
        return now

    def _together(
        self, backend: DeviceBackend, functions: Sequence[PciFunction], known: _Description | None
    ) -> _Description:
        if known is not None and self._is_kept(known, tuple(functions), None):
            self._kept += [device.name for device in known.devices]
            return known
        found: list[Diagnostic] = []
        devices = tuple(backend.devices(functions, found))
        return _Description(tuple(functions), None, devices, tuple(found)).kept_if_equal(known)
