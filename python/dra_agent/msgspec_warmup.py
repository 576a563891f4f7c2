"""Makes the package's Structs safe to decode on several threads.

msgspec (0.22) inspects a Struct's fields when it is first decoded, in Python code that lets other threads run. A thread
that decodes the same Struct meanwhile finds it incomplete, and the process crashes with a segmentation fault.
"""

from __future__ import annotations

import contextlib

import msgspec

_known: set[type[msgspec.Struct]] = set()


def build_decoders() -> int:
    """Have msgspec inspect every imported Struct of this package; returns the number of new ones.

    To be called on one thread, before others decode anything that was imported since the last time.
    """
    new = [struct for struct in _subclasses(msgspec.Struct) if struct not in _known]
    for struct in new:
        with contextlib.suppress(TypeError):  # one that cannot be decoded, and is only ever encoded
            msgspec.json.Decoder(struct)
    _known.update(new)
    return len(new)


def _subclasses(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    found = []
    for sub in struct.__subclasses__():
        if sub.__module__.startswith("dra_agent."):
            found.append(sub)
        found += _subclasses(sub)
    return found
