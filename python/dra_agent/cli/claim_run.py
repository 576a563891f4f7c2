"""`dra-agent claim run`: creates a claim, runs a command with its devices, and releases the claim afterwards."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import DEFAULT_NAMESPACE
from dra_agent.cli.parser import Parser, examples
from dra_agent.errors import AgentError, RetryableError, UsageError

if TYPE_CHECKING:
    from dra_agent.cli.claim_guard import ClaimGuard
    from dra_agent.manifests import LoadedObject
    from dra_agent.standalone.protocol import Client

WAIT_TIMEOUT_S = 30.0
RELEASE_TIMEOUT_S = 60.0
"""Seconds that a release is retried before that is left to the guard."""
PLACEHOLDER = "{cdi}"
IDS = "DRA_AGENT_CDI_DEVICES"
"""Variable of the command: the CDI ids, separated by spaces."""
CLAIM = "DRA_AGENT_CLAIM"
"""Variable of the command: NAMESPACE/NAME."""
NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128
"""Exit codes as a shell has them."""
DESCRIPTION = f"""\
Create a claim, wait until its devices are ready, run a command, and release the claim when the command and every
process that it has started have ended: also if it fails, if a signal ends it, and if this process is killed. A word of
the command with {PLACEHOLDER} is repeated for each CDI id of the claim, and so is an option before it that stands
alone: --device {PLACEHOLDER}. The command has the ids in ${IDS} and NAMESPACE/NAME in ${CLAIM}."""
_EXAMPLES = (
    ("claim run -f claim.yaml -- podman run --rm --device {cdi} IMAGE", "a container with the devices of a claim"),
    ("claim run -f claim.yaml --name train-2 --timeout 10m -- ./train.sh", "the same file for several runs"),
)
_CODES = f"""
exit code: that of the command, {BY_SIGNAL} and the number of a signal that ended it, {NOT_FOUND} if it is not found,
{NOT_EXECUTABLE} if it cannot be run; 1 if the devices were not ready in time, 2 wrong use or an invalid file
"""


class _SignalledError(Exception):
    """A signal came while no command ran that it could be forwarded to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def add_verb(parser: Parser) -> None:
    """Define the flags."""
    from dra_agent.cli.connection import add_connection_flags
    from dra_agent.cli.flags import add_filename_flags, add_timeout_flag

    parser = parser.add_command(
        "run",
        "run a command with the devices of a new claim, and release it afterwards",
        description=DESCRIPTION,
        epilog=examples(*_EXAMPLES) + _CODES,
    )
    add_filename_flags(parser, "one ResourceClaim, and DeviceClasses that it needs", required=True)
    parser.add_argument("--name", metavar="NAME", help="name of the claim, instead of that in the file")
    add_timeout_flag(parser, WAIT_TIMEOUT_S, purpose="for the agent and the devices")
    add_connection_flags(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    """Claim, run, release; returns the exit code of the command. Raises UsageError without a command."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli import earlier_run
    from dra_agent.cli.claim_apply import check
    from dra_agent.cli.claim_guard import ClaimGuard, release
    from dra_agent.cli.connection import connect
    from dra_agent.cli.files import load_files
    from dra_agent.standalone.claim import RUN, RUN_PROCESSES

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise UsageError("no command is given", hint="write -- and the command after the flags")
    objects = load_files(args)
    check(objects, load_config(args).driver_name)
    claim = _one_claim(objects)
    metadata = claim["metadata"]
    metadata["name"] = args.name or metadata["name"]
    metadata["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
    token = secrets.token_hex(8)
    metadata["annotations"] = {**(metadata.get("annotations") or {}), RUN: token}
    key = metadata["namespace"], metadata["name"]
    with connect(args, wait_s=args.timeout) as agent:
        guard = ClaimGuard(agent, *key, token)
        metadata["annotations"][RUN_PROCESSES] = earlier_run.record(os.getpid(), guard.pid)
        try:
            with _forwarded(guard):
                earlier_run.await_end(agent, key, args.timeout)
                view = _claim(agent, [loaded.value for loaded in objects], key, args.timeout)
                agent.close()
                code = _run(words, view, guard)
        except _SignalledError as error:
            code = BY_SIGNAL + error.number
        finally:
            with _deferred():
                complete = partial(release, agent.path, *key, token, timeout_s=RELEASE_TIMEOUT_S)
                guard.end(released=_release(complete, key))
    return code


def _one_claim(objects: Sequence[LoadedObject]) -> dict[str, Any]:
    claims = [loaded for loaded in objects if loaded.kind == "ResourceClaim"]
    if len(claims) != 1:
        where = claims[1].where() if claims else None
        raise UsageError(f"{len(claims)} ResourceClaims, and a run has one", where=where, hint="name a file with one")
    return claims[0].value


def _claim(agent: Client, objects: list[dict[str, Any]], key: tuple[str, str], timeout_s: float) -> dict[str, Any]:
    """Create the claim and wait for it; raises UsageError if it exists, AgentError if it is not ready in time."""
    from dra_agent.cli.claim import explain_command
    from dra_agent.cli.terminal import progress
    from dra_agent.standalone.protocol import Get

    name = "/".join(key)
    applied = agent.apply(objects, whole=False)
    if any(done["kind"] == "ResourceClaim" and done["action"] != "created" for done in applied):
        raise UsageError("a claim of this name exists", where=name, hint="choose another with --name, or delete it")
    with progress(f"waiting for claim {name}"):
        view: dict[str, Any] = agent.call(Get(*key, timeout_s))
    if view["phase"] != "Prepared":
        why = f": {view['message']}" if view["message"] else ""
        raise RetryableError(
            f"is {view['phase'].lower()} after {timeout_s:.0f} s{why}",
            where=f"claim {name}",
            hint=f"apply it, and `{explain_command(view)}` shows why it waits",
        )
    return view


def _run(words: Sequence[str], view: dict[str, Any], guard: ClaimGuard) -> int:
    from dra_agent.cli.earlier_run import CLAIM_UID

    ids: list[str] = view["cdi_device_ids"]
    sys.stdout.flush()
    try:
        environment = {CLAIM: f"{view['namespace']}/{view['name']}", CLAIM_UID: view["uid"], IDS: " ".join(ids)}
        guard.start(expand(words, ids), environment)
    except OSError as error:
        print(f"dra-agent: {words[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    code = guard.wait()
    return code if code >= 0 else BY_SIGNAL - code


def expand(words: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Repeat each word with the placeholder for every id, with an option before it that stands alone."""
    expanded: list[str] = []
    for word in words:
        if PLACEHOLDER not in word:
            expanded.append(word)
            continue
        is_value = word.startswith(PLACEHOLDER) and bool(expanded) and expanded[-1].startswith("-")
        option = [expanded.pop()] if is_value and "=" not in expanded[-1] else []
        for name in ids:
            expanded += [*option, word.replace(PLACEHOLDER, name)]
    return expanded


def _release(complete: Callable[[], bool], key: tuple[str, str]) -> bool:
    """Release the claim, and return whether nothing is left to do.

    A failure is reported, and the exit code stays that of the command.
    """
    name = "/".join(key)
    try:
        problem = "" if complete() else "is still being released: `dra-agent claim list` shows it"
    except RetryableError as error:
        print(f"dra-agent: claim {name} is not released yet, which a process retries: {error}", file=sys.stderr)
        return False
    except AgentError as error:
        problem = f"could not be released: {error}; `dra-agent claim delete {key[1]} -n {key[0]}` releases it"
    if problem:
        print(f"dra-agent: claim {name} {problem}", file=sys.stderr)
    return True


@contextmanager
def _forwarded(guard: ClaimGuard) -> Iterator[None]:
    """Forward signals to the command; raise _SignalledError where none runs.

    SIGINT of a terminal reaches the command by itself, which is in the same process group.
    """

    def receive(number: int, _: FrameType | None) -> None:
        if not guard.is_started:
            raise _SignalledError(number)
        if number != signal.SIGINT or not sys.stdin.isatty():
            guard.signal(number)

    with _handled(receive):
        yield


@contextmanager
def _deferred() -> Iterator[None]:
    """Ignore signals, because a release must not be interrupted."""
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    from dra_agent.cli.claim_guard import FORWARDED

    before = {number: signal.signal(number, handler) for number in FORWARDED}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
