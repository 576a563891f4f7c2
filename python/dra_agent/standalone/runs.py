"""Runs of `dra-agent claim run` that have ended: an `apply` of one that is still under way must store nothing."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.api_object import Object, full_name
from dra_agent.errors import PermanentError
from dra_agent.standalone.claim import RUN

MAX_ENDED = 4096
"""Tokens that are kept. One is needed for as long as a request takes, which has a deadline, and not after a restart."""


def token_of(claim: Object) -> str | None:
    """Return the token of the run that created a claim; None if it is not a run's."""
    token: str | None = ((claim.get("metadata") or {}).get("annotations") or {}).get(RUN)
    return token


class EndedRuns:
    """Tokens in the order in which their runs ended. Not safe for threads: the queue holds its lock."""

    def __init__(self) -> None:
        self._tokens: dict[str, None] = {}

    def add(self, token: str) -> None:
        """Record the end of a run."""
        self._tokens.pop(token, None)
        self._tokens[token] = None
        if len(self._tokens) > MAX_ENDED:
            del self._tokens[next(iter(self._tokens))]

    def refuse(self, values: Iterable[Object]) -> None:
        """Raise PermanentError if one of these objects is the claim of a run that has ended."""
        for value in values:
            if token_of(value) in self._tokens:
                raise PermanentError(
                    "the `dra-agent claim run` of this claim has ended",
                    where=f"claim {full_name(value)}",
                    hint=f"remove the annotation {RUN}, or run the command again",
                )
