"""What a claim or a class says of a NIC."""

from __future__ import annotations

from typing import Annotated

import msgspec

# As the kernel takes them (dev_valid_name, at most 15 bytes), less what pods have already and what sysctl has.
_NAME = r"^(?!(lo|eth0|all|default)$)[A-Za-z0-9][A-Za-z0-9._-]{0,14}$(?!\n)"


class Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the interface is to be; what is left out stays as it is."""

    name: Annotated[str, msgspec.Meta(pattern=_NAME)] | None = None
    """In the container, into which it is moved; left out, it stays on the host."""
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    """Bytes of its largest packet; the adapter may take less."""


class NicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a network adapter, for as long as the claim has it."""

    interface: Interface
