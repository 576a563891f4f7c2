"""The contents of a bundle, and the redaction of each kind: credentials, and the identity of the host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dra_agent import yaml_text
from dra_agent.doctor.bundle.redaction import Redactor
from dra_agent.doctor.record.identity import Replacements
from dra_agent.recording import MANIFEST


class MissingPartError(Exception):
    """A part is missing on this host, or hidden from this user; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document: a msgspec structure, or JSON values."""

    path: str
    value: Any
    is_whole: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Text:
    """A log, or a file that was found on the host."""

    path: str
    text: str
    is_log: bool = True
    is_whole: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class RecordedHost:
    """The files of a recording by their path in it; its identity is replaced already."""

    path: str
    files: Mapping[str, bytes]
    is_whole: ClassVar[bool] = True
    """A part of a recording cannot be replayed."""


Content = Document | Text | RecordedHost


def learn(content: Content, redactor: Redactor, replacements: Replacements | None) -> None:
    """Take credentials and identities from structured contents, which name them."""
    match content:
        case Document(_, value):
            plain = _plain(value)
            redactor.learn_document(plain)
            if replacements is not None:
                replacements.learn_from(json.dumps(plain))
        case Text(path, text, is_log=False):
            redactor.learn_document(_parsed(path, text))
        case _:
            pass


def redacted(content: Content, redactor: Redactor, replacements: Replacements | None) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a content as they may be sent, each with its path in the bundle."""
    match content:
        case Document(path, value):
            clean = _without_identity(redactor.document(_plain(value)), replacements)
            yield path, (json.dumps(clean, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")
        case Text(path, text, is_log):
            clean_text = redactor.text(text) if is_log else _file(path, text, redactor)
            names = _without_identity([path, clean_text], replacements)
            yield redactor.text(names[0]), names[1].encode(errors="replace")
        case RecordedHost(path, files):
            yield from ((f"{path}/{name}", data) for name, data in _recording(files, redactor).items())


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _without_identity(value: Any, replacements: Replacements | None) -> Any:
    if replacements is None:
        return value
    if isinstance(value, Mapping):
        return {replacements.text(key): _without_identity(below, replacements) for key, below in value.items()}
    if isinstance(value, list):
        return [_without_identity(below, replacements) for below in value]
    return replacements.text(value) if isinstance(value, str) else value


def _parsed(path: str, text: str) -> Any:
    """Return the values of a JSON or YAML file; None for a file that is neither, or that aliases make too large."""
    import yaml

    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(yaml.YAMLError, RecursionError, ValueError):
        return yaml_text.load(text)
    return None


def _file(path: str, text: str, redactor: Redactor) -> str:
    """Return a file as it was, except for credentials: by its structure, and by its lines."""
    value = _parsed(path, text)
    if isinstance(value, dict | list):
        with suppress(RecursionError, TypeError, ValueError):
            clean = redactor.document(value)
            if clean != value:
                text = json.dumps(clean, indent=2, ensure_ascii=False, default=str) + "\n"
                return redactor.text(text)
    return redactor.text(text, is_file=True)


def _recording(files: Mapping[str, bytes], redactor: Redactor) -> dict[str, bytes]:
    """Return a recording that can be replayed: its manifest has the sizes and digests of the remaining files."""
    clean = {name: _recorded(name, data, redactor) for name, data in files.items()}
    if MANIFEST in clean and clean != files:
        manifest = json.loads(clean[MANIFEST])
        for file in manifest["files"]:
            data = clean[file["path"]]
            file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        clean[MANIFEST] = json.dumps(manifest, indent=1).encode()
    return clean


def _recorded(name: str, data: bytes, redactor: Redactor) -> bytes:
    text = data.decode(errors="surrogateescape")
    clean = redactor.text(text)
    if clean == text:
        return data
    if name.endswith((".json", ".jsonl")):
        # By its structure, so that it stays JSON.
        lines = [text] if name.endswith(".json") else text.splitlines()
        clean = "".join(
            json.dumps(redactor.document(json.loads(line)), separators=(",", ":"), ensure_ascii=False) + "\n"
            for line in lines
        )
    return clean.encode(errors="surrogateescape")
