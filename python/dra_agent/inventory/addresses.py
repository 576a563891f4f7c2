"""IP addresses of one network interface, from the kernel over rtnetlink (RTM_GETADDR, linux/rtnetlink.h).

Without pyroute2, which costs more memory than the rest of the agent; a process for each query would be too slow.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct

from dra_agent.inventory.uplink import is_of_device

_NETLINK_ROUTE = 0
_RTM_NEWADDR, RTM_GETADDR = 20, 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_LINK = 253
"""Link-local and host addresses have this scope or a narrower one; other hosts cannot use them."""
_PERMANENT = 0x80
"""IFA_F_PERMANENT (linux/if_addr.h)."""
_HEADER = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_TIMEOUT_S = 2.0


def addresses(interface: str, hardware_address: str, *, permanent: bool = False) -> tuple[str, ...]:
    """Return an interface's addresses in CIDR notation ("192.0.2.5/24"); OSError if the kernel does not return all.

    `permanent`: without addresses that expire (DHCP, SLAAC).

    Empty if it is missing, or the agent has a separate network namespace: there, an interface of that name is another
    one.
    """
    if not is_of_device(interface, hardware_address):
        return ()
    index = socket.if_nametoindex(interface)
    try:
        return _dump(index, _PERMANENT if permanent else 0)
    except (struct.error, ValueError) as error:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)) from error


def _dump(index: int, flags: int) -> tuple[str, ...]:
    found: list[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        link.send(_HEADER.pack(_HEADER.size + len(body), RTM_GETADDR, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            data, _, received, _ = link.recvmsg(1 << 16)
            if received & socket.MSG_TRUNC:
                raise ValueError(received)
            while data:
                length, kind, state, *_ = _HEADER.unpack_from(data)
                if not _HEADER.size <= length <= len(data):
                    raise ValueError(length)
                # The end of a dump has the error that stopped it (netlink_dump_done in net/netlink/af_netlink.c).
                if kind == _NLMSG_ERROR or (kind == _NLMSG_DONE and length >= _HEADER.size + _ERROR.size):
                    number = -_ERROR.unpack_from(data, _HEADER.size)[0]
                    if kind == _NLMSG_ERROR or number > 0:
                        raise OSError(number, os.strerror(number))
                if state & _INTERRUPTED:  # addresses changed between two parts, and one may be missing
                    raise OSError(errno.EINTR, os.strerror(errno.EINTR))
                if kind == _NLMSG_DONE:
                    return tuple(found)
                if kind == _RTM_NEWADDR and (address := _read(data[_HEADER.size : length], index, flags)):
                    found.append(address)
                data = data[_aligned(length) :]


def _read(message: bytes, wanted: int, flags: int) -> str | None:
    family, prefix, has, scope, index = _ADDRESS.unpack_from(message)
    if index != wanted or scope >= _SCOPE_LINK or has & flags != flags:
        return None
    values: dict[int, bytes] = {}
    rest = message[_ADDRESS.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    # On a point-to-point link IFA_ADDRESS is the other end; IFA_LOCAL is then this one.
    raw = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    if raw is None or family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    return f"{ipaddress.ip_address(raw)}/{prefix}"


def _aligned(length: int) -> int:
    return (length + 3) & ~3
