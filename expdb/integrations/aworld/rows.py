"""AWorld's classes for a step and its metadata."""

import uuid
from dataclasses import InitVar, dataclass, field
from typing import Any


@dataclass
class ExpMeta:
    """The metadata of a step.

    Parameters
    ----------
    task_id, task_name : str
        The task of the step.
    agent_id : str
        The agent that acted.
    step : int
        Number of the step.
    execute_time : float
        Time of the step in Unix seconds.
    pre_agent : str, optional
        The agent that acted before.
    """

    task_id: str
    task_name: str
    agent_id: str
    step: int
    execute_time: float
    pre_agent: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict.

        Returns
        -------
        dict
            The fields by name.
        """
        return dict(vars(self))


@dataclass
class Experience:
    """The state, the actions and the reward of a step.

    Parameters
    ----------
    state : pydantic model or JSON value
        The state that the agent saw.
    actions : list, optional
        The actions; each is a pydantic model or a JSON value.
    reward_t : float, optional
        The reward.
    adv_t, v_t : object, optional
        The advantage and the value.
    messages : list of dict, optional
        The messages of the step.
    action : object, optional
        A single action, or a list or tuple of actions; an alternative to `actions`.

    Raises
    ------
    ValueError
        If both `action` and `actions` are given.
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
                raise ValueError("action and actions cannot be combined; pass only one of them")
            self.actions = list(action) if isinstance(action, (list, tuple)) else [action]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict; pydantic models are dumped to JSON values.

        Returns
        -------
        dict
            The fields by name.
        """
        return {name: _plain(value) for name, value in vars(self).items()}


@dataclass
class DataRow:
    """A step of an agent.

    Parameters
    ----------
    exp_meta : ExpMeta
        The metadata of the step.
    exp_data : Experience
        The state, the actions and the reward of the step.
    id : str, optional
        The id of the row; by default a new UUID.
    """

    exp_meta: ExpMeta
    exp_data: Experience
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def to_dict(self) -> dict[str, Any]:
        """Return the row as nested dicts.

        Returns
        -------
        dict
            The fields by name.
        """
        return {
            "exp_meta": self.exp_meta.to_dict(),
            "exp_data": self.exp_data.to_dict(),
            "id": self.id,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
