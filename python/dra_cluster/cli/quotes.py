"""What other controllers recorded about an object, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_agent.api_object import Object
from dra_agent.cli.age import age
from dra_agent.printable import printable


def print_quotes(quotes: Iterable[Object]) -> None:
    """Print each condition and admission check with its age, what is missing, and what is not evaluated."""
    left_out: dict[str, None] = {}
    for quoted in quotes:
        for line in _lines(quoted):
            print(printable(line, line=True))
        left_out[quoted["not_evaluated"]] = None
    for what in left_out:
        print(printable(f"not evaluated: {what}", line=True))


def _lines(quoted: Object) -> Iterator[str]:
    subject = " ".join(filter(None, (quoted["kind"], quoted["name"])))
    for one in quoted["conditions"]:
        yield f"{subject}: {one['type']} is {one['status']}{_since(one)}{_why(one['reason'], one['message'])}"
    for one in quoted["admission_checks"]:
        yield f"{subject}: admission check {one['name']} is {one['state']}{_since(one)}{_why('', one['message'])}"
    if quoted["missing"]:
        yield f"{subject}: {quoted['missing']}"


def _since(recorded: Object) -> str:
    try:
        passed = age(recorded["last_transition_time"])
    except (ValueError, TypeError):
        return ""  # The text is not a time, or has no time zone.
    return f" for {passed}" if passed else ""


def _why(reason: str, message: str) -> str:
    return f"{f' ({reason})' if reason else ''}{f': {message}' if message else ''}"
