"""The outcome of an expression on a device in a comparable form: `compile`, `error 5`, `limit`, `true 5`.

The number is the cost in Kubernetes' units. Messages are not compared.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from dra_agent._native import CelError, CelExpression


def of_agent(expression: str, driver: str, device: dict[str, Any]) -> str:
    """Return the outcome of the agent's implementation."""
    selector = _compiled(expression)
    if selector is None:
        return "compile"
    encoded = json.dumps(device).encode()
    try:
        result = selector.matches(driver, encoded)
    except CelError as error:
        message = str(error)
        if message.startswith("attribute "):
            return "device"
        if "cost limit" in message:
            return "limit"
        return f"error {selector.cost(driver, encoded)}"
    return f"{str(result).lower()} {selector.cost(driver, encoded)}"


@lru_cache(maxsize=1)
def _compiled(expression: str) -> CelExpression | None:
    """Compile an expression once for all devices, as the agent does; None if it is refused."""
    try:
        return CelExpression.selector(expression)
    except CelError:
        return None


def of_kubernetes(answer: dict[str, Any]) -> str:
    """Return the outcome of `tests/oracle/cel`."""
    if "compile_error" in answer:
        return "compile"
    if "result" in answer:
        return f"{str(answer['result']).lower()} {answer['cost']}"
    if "cost limit" in answer["runtime_error"]:
        return "limit"
    if "cost" not in answer:
        return "device"
    return f"error {answer['cost']}"


def without_cost(answer: str) -> str:
    """Return the outcome without the cost, for expressions whose cost is not deterministic."""
    return answer.split()[0]
