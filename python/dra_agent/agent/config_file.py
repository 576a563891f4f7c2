"""The TOML file of the configuration, with line numbers for errors."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from dra_agent import _native, user_file
from dra_agent.agent.config import Config, plain, to_path
from dra_agent.errors import UsageError
from dra_agent.host import Host
from dra_agent.inventory.passthrough import Passthrough
from dra_agent.inventory.rules import PartitionRules, Rules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.shares import Shares

MAX_FILE_BYTES = 1 << 20
_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")


class ConfigFile:
    """A file that was read."""

    def __init__(self, path: Path) -> None:
        """Read it; raises UsageError if it cannot be read or has an invalid value."""
        import tomllib  # only where there is a file: the import list is the memory budget

        self._path = path
        try:
            self._text = user_file.read(path, MAX_FILE_BYTES).decode()
            values = tomllib.loads(self._text)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"not UTF-8 text (byte {error.start})", where=str(path)) from error
        except tomllib.TOMLDecodeError as error:
            raise self._not_toml(str(error)) from error
        except (RecursionError, ValueError) as error:
            # tomllib follows nesting with Python's stack, and leaves integers to Python, which has a limit of digits.
            problem = str(error).partition(";")[0] if isinstance(error, ValueError) else "it is nested too deeply"
            raise UsageError(f"not TOML that can be read: {problem}", where=str(path)) from error
        values = self._spelled(values, Config, "")
        try:
            self.config = msgspec.convert(values, Config, dec_hook=to_path)
        except msgspec.ValidationError as error:
            steps = str(error).rpartition("`$")[2].rstrip("`")
            choices = _choices(re.findall(r"\.([a-z_]+)", steps))
            hint = f"it must be one of {', '.join(choices)}" if choices else None
            where = self.place(steps)
            raise UsageError(plain(error), where=where, hint=hint) from error

    def place(self, field: str) -> str:
        """Return `config.toml:7` for a field such as `inventory.share[0].when`: the nearest line that is found.

        tomllib keeps no positions, so lines are found by their keys and table headers.
        """
        start, line = 0, None
        for name, number in _named_steps(field):
            found = self._line_of(name, start, number)
            if found is None:
                break
            line, start = found, found - 1
        return str(self._path) if line is None else f"{self._path}:{line}"

    def check_rules(self, config: Config) -> None:
        """Compile the rules of the inventory; UsageError with file and line for one that can never work."""
        settings = self.config.inventory
        if not (settings.include or settings.exclude or settings.attributes or settings.partition) and not (
            settings.passthrough or settings.share
        ):
            return
        from dra_agent.agent.config_file import check_rules

        try:
            check_rules(settings, config.driver_name)
        except UsageError as error:
            field = (error.where or "").removeprefix("configuration, ")
            where = f"{self._place_of_rule(field)}: {field}"
            raise UsageError(error.message, where=where, hint=error.hint) from error

    def _place_of_rule(self, field: str) -> str:
        """Find the line of one string of a list, too: `exclude[1]` has no key of its own."""
        place = self.place(field)
        listed = re.fullmatch(r"inventory\.(include|exclude)\[(\d+)\]", field)
        if listed is None or not place.rpartition(":")[2].isdigit():
            return place
        rules = self.config.inventory.include if listed[1] == "include" else self.config.inventory.exclude
        first = next(iter(rules[int(listed[2])].splitlines()), "").strip()
        begin = int(place.rpartition(":")[2]) - 1
        for number, line in enumerate(self._text.splitlines()[begin:], begin + 1):
            if first and (first in line or first.replace('"', '\\"') in line):
                return f"{self._path}:{number}"
        return place

    def _line_of(self, name: str, start: int, number: int | None) -> int | None:
        """Return the line, from 1, of the `number`th match of a key or its table after line `start`."""
        key = re.escape(name.replace("-", "_")).replace("_", "[-_]")
        pattern = re.compile(rf"\s*(\[+\s*([\w-]+\s*\.\s*)*)?[\"']?{key}[\"']?\s*[=\].]")
        inline = re.compile(rf"[{{,]\s*[\"']?{key}[\"']?\s*=")
        tables = re.compile(rf"\s*\[\[\s*([\w-]+\s*\.\s*)*{key}\s*\]\]")
        remaining = number or 0
        for line, text in enumerate(self._text.splitlines()[start:], start + 1):
            if pattern.match(text) or (line == start + 1 and inline.search(text)):
                if tables.match(text) and remaining:
                    remaining -= 1
                    continue
                return line
        return None

    def _spelled(self, values: dict[str, Any], struct: type[msgspec.Struct], above: str) -> dict[str, Any]:
        """Keys as fields are named (`node-name` is `node_name`); an unknown one is refused with the nearest known."""
        known = _fields(struct)
        spelled: dict[str, Any] = {}
        for key, value in values.items():
            name = key.replace("-", "_")
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
                raise UsageError(f"unknown key {key!r}", where=self.place(above + key), hint=hint)
            inner = _struct_of(known[name])
            if inner is not None and isinstance(value, dict):
                value = self._spelled(value, inner, f"{above}{key}.")
            elif inner is not None and isinstance(value, list):
                value = [
                    self._spelled(one, inner, f"{above}{key}[{number}].") if isinstance(one, dict) else one
                    for number, one in enumerate(value)
                ]
            spelled[name] = value
        return spelled

    def _not_toml(self, message: str) -> UsageError:
        problem, _, where = message.partition(" (at ")
        line = re.match(r"line (\d+)", where)
        number = int(line[1]) if line else len(self._text.splitlines()) or 1
        return UsageError(f"not TOML: {problem}", where=f"{self._path}:{number}")


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Types by the names of a struct's fields. msgspec would compile every annotation at each call."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, or holds several of."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one
    return None


def _named_steps(field: str) -> list[tuple[str, int | None]]:
    """`inventory.share[1].when` as (inventory, -), (share, 1), (when, -)."""
    steps: list[tuple[str, int | None]] = []
    for match in _STEP.finditer(field):
        if match[1] is not None:
            steps.append((match[1], None))
        elif steps:
            steps[-1] = (steps[-1][0], int(match[2]))
    return steps


def _choices(keys: list[str]) -> tuple[str, ...]:
    """The words that a setting knows, where it is one of few; `keys` lead to it."""
    kind: Any = Config
    for key in keys:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return ()
        kind = _fields(kind).get(key)
    return get_args(kind) if get_origin(kind) is Literal else ()


class FieldError(msgspec.Struct, frozen=True):
    """One validation error of the API server."""

    field: str
    message: str


def validate(value: dict[str, Any]) -> list[FieldError]:
    """Return the errors for which the API server would reject a resource.k8s.io/v1 object."""
    return msgspec.json.decode(_native.validate_object(msgspec.json.encode(value)), type=list[FieldError])


def validation_messages(value: dict[str, Any]) -> list[str]:
    """Return the errors as sentences with the object's kind and name."""
    metadata = value.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    subject = f"{value.get('kind', 'object')} {name}".strip()
    return [f"{subject}: {fault.field}: {fault.message}" for fault in validate(value)]


def check_rules(settings: InventorySettings, driver: str) -> None:
    """Raise UsageError for the first rule that can never work; its `where` is `configuration, inventory.FIELD`."""
    Rules(settings, driver)
    PartitionRules(settings.partition, driver)
    Shares(settings.share, driver)
    Passthrough(Host(), settings.passthrough, driver, None)
