"""Numbers of pods and groups in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 pod` or `3 pods`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def share_of(part: int, whole: int, noun: str) -> str:
    """Return `all 3 pods`, or `2 of 3 pods`."""
    return f"all {counted(whole, noun)}" if part == whole > 1 else f"{part} of {counted(whole, noun)}"


def has(number: int) -> str:
    """Return the verb for a number of pods."""
    return "has" if number == 1 else "have"


def there_are(number: int) -> str:
    """Return `there is 1`, `there are 3` or `there are none`."""
    return f"there {'is' if number == 1 else 'are'} {number or 'none'}"
