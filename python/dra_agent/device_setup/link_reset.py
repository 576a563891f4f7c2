"""Restores the attributes of a link that has returned from a container's network namespace, over rtnetlink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dra_agent.device_setup.link import (
    ETHERNET_CHARACTERS,
    FLAGS,
    NUMBERS,
    Link,
    alias_of,
    altnames_of,
    name_of,
    newer_numbers,
    raw,
    set_newer_number,
    shown,
    xdp_of,
)

if TYPE_CHECKING:
    from pyroute2 import IPRoute


class LinkReset:
    """Undoes what a container changed on a returned interface, and collects what it did."""

    def __init__(self, host: IPRoute, index: int, before: Link) -> None:
        self._host = host
        self._index = index
        self._before = before
        self.changed: list[str] = []
        self.differing: list[str] = []

    def remove_programs(self, found: Any) -> str:
        """Remove programs that the host did not attach; return the reason if one remains, otherwise ""."""
        from dra_agent.device_setup import bpf

        for mode, program in xdp_of(found).items():
            if program in self._before.xdp:
                continue
            off = {"attrs": [("IFLA_XDP_FD", -1), ("IFLA_XDP_FLAGS", mode)]}
            if why := self._set(IFLA_XDP=off):
                return _program_remains("an XDP program", program, why)
            self.changed.append(f"XDP program {program} removed")
        programs = bpf.tcx_programs(self._index)
        if programs is None or (programs and self._before.tcx is None):
            why = "bpf(2) is not permitted" if programs is None else "those of the host were not recorded"
            self.differing.append(f"a tcx program of a pod may remain: {why}")
            return ""
        for program in programs:
            if program in (self._before.tcx or ()):
                continue
            if why := bpf.detach_tcx(self._index, program):
                return _program_remains("a tcx program", program, why)
            self.changed.append(f"tcx program {program} removed")
        return ""

    def set_hardware_address(self, found: Any) -> str:
        """Restore it; return the reason if that fails, otherwise ""."""
        before, now = self._before.hardware_address, str(found.get_attr("IFLA_ADDRESS"))
        # The adapter determines the 20 bytes of InfiniBand.
        if len(before) != ETHERNET_CHARACTERS or before == now:
            return ""
        if self._set(address=before):
            # Most adapters accept another address only while the link is down; the caller sets it up again.
            why = self._set(state="down") or self._set(address=before)
            if why:
                return f"its hardware address is {now} and cannot be restored to {before}: {why}"
        self.changed.append(f"hardware address {now} restored to {before}")
        return ""

    def set_flags(self, found: Any) -> str:
        """Restore them; return the reason if that fails, otherwise ""."""
        before, now = self._before.flags, int(found["flags"]) & FLAGS
        if before is None or before == now:
            return ""
        if why := self._set(flags=before, change=before ^ now):
            return f"its flags are {now:#x} and cannot be restored to {before:#x}: {why}"
        self.changed.append(f"flags {now:#x} restored to {before:#x}")
        return ""

    def set_others(self, found: Any) -> None:
        """Restore the other attributes of the link."""
        before = self._before
        for name, value in before.numbers.items():
            now = found.get_attr(name)
            if name in NUMBERS and now is not None and int(now) != value:
                self._note(f"{NUMBERS[name]} {now}", f"restored to {value}", self._set(**{NUMBERS[name]: value}))
        # Last: the kernel sets them with the others.
        for name, now in newer_numbers(self._index).items():
            value = before.numbers.get(name, now)
            if value != now:
                self._note(f"{name} {now}", f"restored to {value}", self._set_newer(name, value))
        if before.alias is not None and before.alias != alias_of(found):
            self._note("alias", "restored", self._set(IFLA_IFALIAS=raw(before.alias)))
        if before.altnames is None:
            return
        now_called = altnames_of(found)
        # Remove altnames first: one may be the original name.
        for name in now_called:
            if name not in before.altnames:
                why = self._link("property_del", altname=raw(name))
                self._note(f"alternative name {shown(name)}", "removed", why)
        for name in before.altnames:
            if name not in now_called:
                why = self._link("property_add", altname=raw(name))
                self._note(f"alternative name {shown(name)}", "restored", why)

    def rename(self, found: Any, name: str) -> str:
        """Give it its name; return the reason if that fails, otherwise ""."""
        if name_of(found) == name:
            return ""
        why = self._set(state="down") or self._set(ifname=name)
        if why:
            return f"{shown(name_of(found))} cannot be renamed to {name}: {why}"
        self.changed.append(f"name {shown(name_of(found))} restored to {name}")
        return ""

    def set_mtu_and_state(self, found: Any, mtu: int, *, up: bool) -> str:
        """Restore them; return the reason if that fails, otherwise "".

        Not through /sys: a write of the flags that it shows would turn a count of promiscuous users into a flag.
        """
        now = int(found.get_attr("IFLA_MTU"))
        if now != mtu and (why := self._set(mtu=mtu)):
            return f"its MTU is {now} and cannot be restored to {mtu}: {why}"
        if why := self._set(state="up" if up else "down"):
            return f"it cannot be set {'up' if up else 'down'}: {why}"
        return ""

    def _note(self, property_: str, done: str, why: str) -> None:
        if why:
            self.differing.append(f"{property_} is not {done}: {why}")
        else:
            self.changed.append(f"{property_} {done}")

    def _set(self, **attributes: Any) -> str:
        return self._link("set", **attributes)

    def _set_newer(self, name: str, value: int) -> str:
        try:
            set_newer_number(self._index, name, value)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _link(self, command: str, **attributes: Any) -> str:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            self._host.link(command, index=self._index, **attributes)
        except NetlinkError as error:
            return os.strerror(error.code)
        return ""


def _program_remains(message: str, program: int, why: str) -> str:
    return f"{message} (id {program}) cannot be removed: {why}; a process holds it by a link, see `bpftool link`"
