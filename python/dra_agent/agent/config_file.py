"""The TOML file of the configuration: all problems of a file at once, each with line and key."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from dra_agent import _native, user_file
from dra_agent.agent.config import Config, to_path
from dra_agent.agent.config_problems import ConfigProblem
from dra_agent.errors import UsageError
from dra_agent.host import Host
from dra_agent.inventory.passthrough import Passthrough
from dra_agent.inventory.rules import PartitionRules, Rules
from dra_agent.inventory.settings import AttributeRule, InventorySettings
from dra_agent.inventory.shares import Shares
from dra_agent.toml_lines import TomlLines, reason_and_line

MAX_FILE_BYTES = 1 << 20
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_RULE = re.compile(r"(inventory\.\w+)\[(\d+)\]")
_RULE_PLACE = "configuration, "
REMOVED_KEYS = {
    "otlp": ("no longer used: the agent exports nothing", "let the collector scrape /metrics, and remove the section"),
}
"""Top-level keys of earlier versions, each with a message and what to do.

They are ignored with a warning: the file of an earlier version must not stop the agent at an upgrade."""


class ConfigFile:
    """A file that was read."""

    def __init__(self, path: Path) -> None:
        """Read and check it; `problems` has the errors."""
        self.path = path
        self.problems: list[ConfigProblem] = []
        self.config = Config()
        """The valid values of the file; an invalid one is as if it were not set, so that the rest is checked too."""
        self.ignored: list[ConfigProblem] = []
        """Keys of earlier versions."""
        self.set_keys: frozenset[str] = frozenset()
        """The keys that the file sets, such as `health.fatal`; an array of tables is one key."""
        self._lines: TomlLines | None = None
        self._numbers: dict[str, list[int]] = {}
        """The numbers in the file of the valid elements of a list, by key."""
        values = self._read()
        if values is None:
            return
        keys: set[str] = set()
        checked = self._checked(values, Config, "", keys)
        self.set_keys = frozenset(keys)
        try:
            self.config = msgspec.convert(checked, Config, dec_hook=to_path)
        except msgspec.ValidationError as error:
            self._add_invalid(error, "", Config)

    def place(self, key: str) -> tuple[str, int | None]:
        """Return the file and the line of a key, or of the nearest key above it that the file has."""
        return str(self.path), None if self._lines is None else self._lines.line(key)

    def check_rules(self, driver: str) -> None:
        """Compile the rules of the inventory individually; adds a problem for each invalid one."""
        for error in _rule_errors(self.config.inventory, driver):
            key = (error.where or "").removeprefix(_RULE_PLACE)
            if rule := _RULE.match(key):
                key = f"{rule[1]}[{self._numbers[rule[1]][int(rule[2])]}]{key[rule.end() :]}"
            self._add(key, error.message, error.hint)

    def _read(self) -> dict[str, Any] | None:
        import tomllib  # only where there is a file: the import list is the memory budget

        text = ""
        try:
            text = user_file.read(self.path, MAX_FILE_BYTES).decode()
            values = tomllib.loads(text)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            self.problems.append(ConfigProblem(str(self.path), message, is_unreadable=True))
        except UnicodeDecodeError as error:
            self._add("", f"not UTF-8 text (byte {error.start})")
        except tomllib.TOMLDecodeError as error:
            reason, line = reason_and_line(error, text)
            self.problems.append(ConfigProblem(str(self.path), f"not TOML: {reason}", line=line))
        except (RecursionError, ValueError) as error:
            # tomllib follows nesting with Python's stack, and leaves integers to Python, which has a limit of digits.
            reason = str(error).partition(";")[0] if isinstance(error, ValueError) else "it is nested too deeply"
            self._add("", f"not TOML that can be read: {reason}")
        else:
            # TOML ends lines with LF or CRLF; tomllib reads CRLF as LF.
            self._lines = TomlLines(text.replace("\r\n", "\n"))
            return values
        return None

    def _add(self, key: str, message: str, hint: str | None = None, *, names_key: bool = False) -> None:
        origin, line = self.place(key) if key else (str(self.path), None)
        self.problems.append(ConfigProblem(origin, message, key, line, hint, names_key))

    def _checked(
        self, values: dict[str, Any], struct: type[msgspec.Struct], above: str, keys: set[str] | None = None
    ) -> dict[str, Any]:
        """Return the values under the names of fields (`node-name` is `node_name`), and add every problem of them."""
        known = _fields(struct)
        spelled: dict[str, Any] = {}
        for written, value in values.items():
            name = written.replace("-", "_")
            key = above + name
            if key in REMOVED_KEYS:
                origin, line = self.place(key)
                message, hint = REMOVED_KEYS[key]
                self.ignored.append(ConfigProblem(origin, message, key, line, hint))
                continue
            if name not in known:
                self._add_unknown(above, written, known)
                continue
            if name in spelled:
                self._add(key, "is set twice, once with a dash and once with an underscore", "remove one")
                continue
            inner = _unwrapped(known[name])
            if _is_struct(inner) and isinstance(value, dict):
                spelled[name] = self._checked(value, inner, f"{key}.", keys)
                continue
            if keys is not None:
                keys.add(key)
            before = len(self.problems)
            if get_origin(inner) is tuple and isinstance(value, list):
                spelled[name] = self._elements(value, get_args(inner)[0], key)
            else:
                spelled[name] = value
                if get_origin(inner) is dict and isinstance(value, dict):
                    for inner_key, one in value.items():
                        self._check_value(one, get_args(inner)[1], f"{key}.{inner_key}")
            if len(self.problems) == before:
                self._check_value(spelled[name], known[name], key)
            if len(self.problems) > before and not isinstance(value, list):
                del spelled[name]
        for name in _required(struct) - spelled.keys():
            if not any(written.replace("-", "_") == name for written in values):
                self._add(above.rstrip("."), f"required key {name!r} is missing", "add it")
        return spelled

    def _elements(self, values: list[Any], kind: Any, key: str) -> list[Any]:
        """Return the valid elements, and remember their numbers in the file."""
        valid: dict[int, Any] = {}
        for number, value in enumerate(values):
            before = len(self.problems)
            place = f"{key}[{number}]"
            if _is_struct(kind) and isinstance(value, dict):
                value = self._checked(value, kind, f"{place}.")
            else:
                self._check_value(value, kind, place)
            if len(self.problems) == before:
                valid[number] = value
        self._numbers[key] = list(valid)
        return list(valid.values())

    def _check_value(self, value: Any, kind: Any, key: str) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            self._add(key, f"{value} is not a number that can be used", "write a finite number")
            return
        try:
            msgspec.convert(value, kind, dec_hook=to_path)
        except msgspec.ValidationError as error:
            self._add_invalid(error, key, kind)

    def _add_invalid(self, error: msgspec.ValidationError, key: str, kind: Any) -> None:
        below = _PLACE.search(str(error))
        inner = "" if below is None else below[1]
        dot = "." if key and inner and not inner.startswith("[") else ""
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        hint = f"it must be one of {', '.join(map(str, choices))}" if choices else None
        self._add(f"{key}{dot}{inner}", _PLACE.sub("", str(error)), hint)

    def _add_unknown(self, above: str, written: str, known: dict[str, Any]) -> None:
        import difflib

        near = difflib.get_close_matches(written.replace("-", "_"), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        self._add(above + written, f"unknown key {written!r}", hint, names_key=True)


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Types by the names of a struct's fields. msgspec would compile every annotation at each call."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


@functools.cache
def _required(struct: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(struct) if field.required)


def _unwrapped(kind: Any) -> Any:
    """Return a type without its limits."""
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _rule_errors(settings: InventorySettings, driver: str) -> Iterator[UsageError]:
    """Compile each rule individually, then all together as the agent does; an error's `where` has the rule's number."""
    count = 0
    for part, index in _single_rules(settings):
        try:
            check_rules(part, driver)
        except UsageError as error:
            count += 1
            where = re.sub(r"\[0\]", f"[{index}]", error.where or "", count=1)
            yield UsageError(error.message, where=where, hint=error.hint)
    if count == 0:
        try:
            check_rules(settings, driver)
        except UsageError as error:
            yield error


def _single_rules(settings: InventorySettings) -> Iterator[tuple[InventorySettings, int]]:
    """Return settings with one rule each, and the rule's number; each attribute of a rule is one, too."""
    for index, text in enumerate(settings.include):
        yield InventorySettings(include=(text,)), index
    for index, text in enumerate(settings.exclude):
        yield InventorySettings(exclude=(text,)), index
    for index, rule in enumerate(settings.attributes):
        yield InventorySettings(attributes=(AttributeRule(rule.when, {}),)), index
        for name, value in rule.set.items():
            yield InventorySettings(attributes=(AttributeRule("true", {name: value}),)), index
    for index, partition in enumerate(settings.partition):
        yield InventorySettings(partition=(partition,)), index
    for index, passthrough in enumerate(settings.passthrough):
        yield InventorySettings(passthrough=(passthrough,)), index
    for index, share in enumerate(settings.share):
        yield InventorySettings(share=(share,)), index
    for index, ahead in enumerate(settings.prepare_ahead):
        yield InventorySettings(prepare_ahead=(ahead,)), index
    for index, overhead in enumerate(settings.overhead):
        yield InventorySettings(overhead=(overhead,)), index


class FieldError(msgspec.Struct, frozen=True):
    """One validation error of the API server."""

    field: str
    message: str


def validate(value: dict[str, Any]) -> list[FieldError]:
    """Return the errors for which the API server would reject a resource.k8s.io/v1 object."""
    return msgspec.json.decode(_native.validate_object(msgspec.json.encode(value)), type=list[FieldError])  # noqa: TID251 - the response of the Rust part


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
