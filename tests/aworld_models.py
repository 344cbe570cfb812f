"""What AWorld's page imports from aworld.core.common: two pydantic models."""

from typing import Any

from pydantic import BaseModel


class Observation(BaseModel):
    """What an agent saw."""

    content: Any = None
    numbers: list[int] = []


class ActionModel(BaseModel):
    """What an agent did."""

    tool_name: str | None = None
    params: dict[str, Any] = {}
