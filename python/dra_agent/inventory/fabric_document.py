"""The document with the place of a host and of its devices in the network: its fields, and how it is decoded."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dra_agent.toml_lines import TomlLines, reason_and_line

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")]
"""The value of a label, so that it can be an attribute and a label of the Node."""
MAX_RAIL = 4095


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the network; what is not set is unknown."""

    rack: Name | None = None
    leaf: Name | None = None
    """The switch next to the host, by its GUID or name."""
    spine: Name | None = None
    core: Name | None = None
    rail: Annotated[int, msgspec.Meta(ge=0, le=MAX_RAIL)] | None = None
    """The devices of one number on all hosts are connected with each other by as few switches as possible."""


ATTRIBUTES = Place.__struct_fields__
_DEVICES = "devices"
_EXPECTED_NAME = 'a text of 1 to 63 letters, digits, "-", "_" and ".", with a letter or digit at both ends'
_EXPECTED = {"rail": f"a whole number from 0 to {MAX_RAIL}"}


class FabricDocument(msgspec.Struct, frozen=True):
    """The place of the host, and of devices that differ from it."""

    host: Place = Place()
    devices: dict[str, Place] = {}
    """By PCI address, UUID, network interface or RDMA device."""
    lines: dict[str, int] = {}
    """The first line of each device."""


class InvalidDocumentError(ValueError):
    """A document that cannot be used."""

    def __init__(self, message: str, line: int | None = None) -> None:
        """`line` counts from 1; None if it is unknown."""
        super().__init__(message)
        self.line = line


def decode(data: bytes) -> FabricDocument:
    """Decode a TOML document; raises InvalidDocumentError for the first problem."""
    import tomllib  # only where there is a file: the import list is the memory budget

    text = ""
    try:
        text = data.decode()
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise InvalidDocumentError(f"not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        reason, line = reason_and_line(error, text)
        raise InvalidDocumentError(f"not TOML: {reason}", line) from None
    except RecursionError:
        raise InvalidDocumentError("not TOML that can be read: it is nested too deeply") from None
    except ValueError as error:  # Python's limit for the digits of an integer
        raise InvalidDocumentError(f"not TOML that can be read: {str(error).partition(';')[0]}") from None
    lines = TomlLines(text.replace("\r\n", "\n"))

    def line_of(*keys: str) -> int | None:
        return lines.nearest(tuple(key.replace("-", "_") for key in keys))

    def place(values: Any, *path: str) -> Place:
        if not isinstance(values, dict):
            raise InvalidDocumentError(f"{'.'.join(path)}: expected a table", line_of(*path))
        for key, value in values.items():
            where, line = ".".join((*path, key)), line_of(*path, key)
            if key not in ATTRIBUTES:
                known = (*ATTRIBUTES, _DEVICES) if not path else ATTRIBUTES
                raise InvalidDocumentError(f"unknown key {where!r}; known keys: {', '.join(known)}", line)
            try:
                msgspec.convert({key: value}, Place)
            except msgspec.ValidationError:
                expected = _EXPECTED.get(key, _EXPECTED_NAME)
                raise InvalidDocumentError(f"{where}: expected {expected}", line) from None
        return msgspec.convert(values, Place)

    devices = values.pop(_DEVICES, {})
    if not isinstance(devices, dict):
        raise InvalidDocumentError(f"{_DEVICES}: expected a table", line_of(_DEVICES))
    return FabricDocument(
        place(values),
        {name: place(one, _DEVICES, name) for name, one in devices.items()},
        {name: first for name in devices if (first := line_of(_DEVICES, name)) is not None},
    )
