"""What AWorld keeps of a step: where and when it was, and what was seen, done and earned."""

import uuid
from dataclasses import InitVar, dataclass, field
from typing import Any


@dataclass
class ExpMeta:
    """Where and when a step was.

    Task, agent, number, Unix seconds, and the agent that acted before.
    """

    task_id: str
    task_name: str
    agent_id: str
    step: int
    execute_time: float
    pre_agent: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dict(vars(self))


@dataclass
class Experience:
    """What a step saw, did and earned.

    `state` and each of `actions` may be any pydantic model, or any JSON value. `action=` is a list
    of one.
    """

    state: Any
    actions: list[Any] | None = None
    reward_t: float | None = None
    adv_t: Any = None
    v_t: Any = None
    messages: list[dict[str, Any]] | None = None
    action: InitVar[Any] = None

    def __post_init__(self, action: Any) -> None:
        if action is not None:
            if self.actions is not None:
                raise ValueError("both action and actions are given: give one of them")
            self.actions = list(action) if isinstance(action, (list, tuple)) else [action]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, models as what they dump to."""
        return {name: _plain(value) for name, value in vars(self).items()}


@dataclass
class DataRow:
    """A step of an agent: an `ExpMeta`, an `Experience` and an id, by default a new uuid."""

    exp_meta: ExpMeta
    exp_data: Experience
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def to_dict(self) -> dict[str, Any]:
        """Return the row as nested dicts."""
        return {
            "exp_meta": self.exp_meta.to_dict(),
            "exp_data": self.exp_data.to_dict(),
            "id": self.id,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
