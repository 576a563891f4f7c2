"""The two families of errors of the agent: retryable and permanent. Both have a message for users."""

from __future__ import annotations

import errno

from dra_agent.printable import printable

SHORTAGES = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Error numbers of what the system or this process lacks now: they say nothing about the object of the call."""


class AgentError(Exception):
    """Base of every error that reaches a user: message, place, and hint."""

    exit_code = 1
    """Exit code of a command with this error: 1 for a failure, 2 for wrong use."""

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None, public: str | None = None
    ) -> None:
        """`public` replaces message and hint for other users than the host's, if these name a claim of others."""
        self.message = message
        self.where = where
        self.hint = hint
        self.public = public
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        # It goes to terminals, logs, Events, the kubelet and the API server, and may quote external input.
        return printable(f"{text}; {self.hint}" if self.hint else text)

    @property
    def public_text(self) -> str:
        """The text for objects of a namespace: Events, claim status, and the Event that the kubelet writes."""
        if self.public is None:
            return str(self)
        return printable(f"{self.where}: {self.public}" if self.where else self.public)


class RetryableError(AgentError):
    """The same request may succeed later: a busy device, a hung library, a full disk."""


class BusyError(RetryableError):
    """The request was refused before a part of it was done, because the agent serves as many as it can."""


class NoAgentError(RetryableError):
    """No agent listens: none was started here, or it has ended."""


class PermanentError(AgentError):
    """The same request can never succeed: it must be changed first."""


class NoSuchObjectError(PermanentError):
    """The object that a command or request names does not exist."""


class UsageError(PermanentError):
    """Wrong use of a command, or an invalid file."""

    exit_code = 2
