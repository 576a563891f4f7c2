"""What an expression answers on a device, in a form that can be compared: `compile`, `error 5`, `limit`, `true 5`.

The number is the cost in Kubernetes' units. Messages are not compared.
"""

from __future__ import annotations

import json
from typing import Any

from dra_agent._native import CelError, CelExpression


def of_ours(expression: str, driver: str, device: dict[str, Any]) -> str:
    """Our answer."""
    try:
        program = CelExpression.selector(expression)
    except CelError:
        return "compile"
    encoded = json.dumps(device).encode()
    try:
        result = program.matches(driver, encoded)
    except CelError as error:
        message = str(error)
        if message.startswith("attribute "):
            return "device"
        if "cost limit" in message:
            return "limit"
        return f"error {program.cost(driver, encoded)}"
    return f"{str(result).lower()} {program.cost(driver, encoded)}"


def of_kubernetes(answer: dict[str, Any]) -> str:
    """The answer of `tests/oracle/cel`."""
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
    """The answer where the cost is left to chance."""
    return answer.split()[0]
