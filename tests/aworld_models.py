"""Two pydantic models that AWorld's page imports from aworld.core.common."""

from typing import Any

from pydantic import BaseModel


class Observation(BaseModel):
    """The observation of an agent."""

    content: Any = None
    numbers: list[int] = []


class ActionModel(BaseModel):
    """The action of an agent."""

    tool_name: str | None = None
    params: dict[str, Any] = {}
