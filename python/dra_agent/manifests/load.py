"""Objects from files and standard input: multi-document YAML, JSON, and the lists that kubectl prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import _native, user_file
from dra_agent.errors import UsageError
from dra_agent.free_form import EACH, without_unreadable
from dra_agent.manifests.document import Document, read_documents

STANDARD_INPUT = "-"
MAX_FILE_BYTES = 256 << 20
"""Maximum size of a file of objects; above `kubectl get resourceslices -o json` of 5,000 nodes."""


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """One object of a file."""

    value: dict[str, Any]
    """The object, as JSON values."""
    file: str
    number: int
    """Which document of the file it is in, from 1."""
    line_of: Callable[[str], int]
    """The line of a field such as `spec.devices.requests[0]`, or of its nearest parent."""

    @property
    def kind(self) -> str:
        """`ResourceClaim`; empty where the object has none."""
        return str(self.value.get("kind") or "")

    @property
    def name(self) -> str:
        """The name in the metadata; empty where the object has none."""
        metadata = self.value.get("metadata")
        return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""

    def where(self, field: str = "") -> str:
        """`claim.yaml:14`."""
        return f"{self.file}:{self.line_of(field)}"

    def diagnostics(self) -> list[str]:
        """The errors of the object, each as `claim.yaml:14: field: message`."""
        errors = msgspec.json.decode(_native.validate_object(msgspec.json.encode(self.value)))  # noqa: TID251 - the response of the Rust part
        return [
            f"{self.where(error['field'])}: {error['field'] + ': ' if error['field'] else ''}{error['message']}"
            for error in errors
        ]


def load_manifests(
    path: Path | str, *, strict: bool = True, allow_empty_list: bool = False, max_bytes: int = MAX_FILE_BYTES
) -> list[LoadedObject]:
    """The objects of a regular file or a pipe of the caller, or of standard input where the path is `-`.

    More than `max_bytes` are refused.

    `strict` demands resource.k8s.io/v1 objects without an unknown field or a broken limit; what a cluster printed
    is read with strict=False, so that fields of a newer cluster are passed over. `allow_empty_list`: a list without
    items, which kubectl prints for no results, yields no objects.

    Raises UsageError with the file, and the line and field of each error.
    """
    is_stdin = str(path) == STANDARD_INPUT
    file = "standard input" if is_stdin else str(path)
    try:
        data = user_file.read_standard_input(max_bytes) if is_stdin else user_file.read(path, max_bytes)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=file) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 text (byte {error.start})", where=file) from error
    return parse_objects(text, file, strict=strict, allow_empty_list=allow_empty_list)


def parse_objects(text: str, file: str, *, strict: bool = True, allow_empty_list: bool = False) -> list[LoadedObject]:
    """Return the objects of a text; `file` is its name in errors. Raises UsageError like `load_manifests`."""
    if not strict and (printed := _read_json(text, file)):
        return printed
    documents = list(read_documents(text, file))
    objects = [loaded for number, document in enumerate(documents, 1) for loaded in _objects_of(document, file, number)]
    if not objects and not (allow_empty_list and documents):
        raise UsageError("holds no object", where=file, hint="write at least one resource.k8s.io/v1 object")
    problems = [problem for loaded in objects for problem in loaded.diagnostics()] if strict else []
    if problems:
        raise UsageError("\n".join(problems))
    return objects


def _read_json(text: str, file: str) -> list[LoadedObject]:
    """Read JSON as kubectl prints it, in a fiftieth of the time of YAML; empty for everything else.

    The YAML reader decides about what is not plain JSON, such as a key that is there twice: it names the line. Lines of
    other errors are computed only then.
    """
    if not text.startswith("{"):
        return []
    try:
        value = _native.read_json(text)
    except ValueError:
        text = _without_unreadable(text)
        try:
            value = _native.read_json(text)
        except ValueError:
            return []
    items = value.get("items") if _is_list(value) else [value]
    if not isinstance(items, list) or not all(isinstance(item, dict) and not _is_list(item) for item in items):
        return []
    lines: list[LoadedObject] = []

    def line_of(index: int, field: str) -> int:
        if not lines:
            for number, document in enumerate(read_documents(text, file), 1):
                lines.extend(_objects_of(document, file, number))
        return lines[index].line_of(field)

    return [LoadedObject(item, file, 1, partial(line_of, index)) for index, item in enumerate(items)]


def _without_unreadable(text: str) -> str:
    """Replace what drivers define and nothing here reads, as in responses of the API server; lines stay the same."""
    return without_unreadable(without_unreadable(text.encode(errors="surrogatepass"), ("items", EACH))).decode(
        errors="surrogatepass"
    )


def _is_list(value: dict[str, Any]) -> bool:
    return str(value.get("kind") or "").endswith("List")


def _objects_of(document: Document, file: str, number: int) -> Iterator[LoadedObject]:
    if not isinstance(document.value, dict):
        where = f"{file}:{document.line_of('')}"
        raise UsageError("not an object: a document must have apiVersion, kind and spec", where=where)
    kind = document.value.get("kind")
    items = document.value.get("items")
    if isinstance(kind, str) and kind.endswith("List"):
        if items is not None and not isinstance(items, list):
            raise UsageError(f"the items of a {kind} are not a list", where=f"{file}:{document.line_of('items')}")
        for item in document.items("items") if items else []:
            yield from _objects_of(item, file, number)
    else:
        yield LoadedObject(document.value, file, number, document.line_of)
