"""Units say what each drawn step becomes. They are settings, frozen, and work with every sampler and query."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from expdb.errors import InvalidValue

SUCCESSOR_FIELDS = ("obs", "observation", "state")


@dataclass(frozen=True)
class Step:
    """The step as it is stored."""


@dataclass(frozen=True)
class NStep:
    """The step and the one that follows it in its episode: `next_<field>`, `discount`, `n_steps`.

    `reward` is the sum over the steps taken, discounted by `gamma`; `discount` is what a bootstrapped value is multiplied
    with, gamma to the power of `n_steps`, and 0 where the episode terminated. A step whose successor is unknown, because
    its episode is open, was aborted or was truncated without `end(...)`, is never drawn. `next_fields` names the fields
    to derive; by default those that `end` received, and `obs`, `observation` and `state`. For now `n` is 1.
    """

    n: int = 1
    gamma: float = 1.0
    end: Literal["shorten", "redraw", "drop"] = "shorten"
    next_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.n != 1:
            raise InvalidValue(f"NStep({self.n}): only NStep(1) is available so far")
        if not isinstance(self.gamma, (int, float)) or not 0.0 <= self.gamma <= 1.0:
            raise InvalidValue(f"gamma is {self.gamma!r}: give a number from 0 to 1")
        if self.end not in ("shorten", "redraw", "drop"):
            raise InvalidValue(f"end is {self.end!r}: give 'shorten', 'redraw' or 'drop'")
        if isinstance(self.next_fields, str):
            raise InvalidValue(f"next_fields is {self.next_fields!r}: give a tuple of names")
        if self.next_fields is not None:
            object.__setattr__(self, "next_fields", tuple(self.next_fields))


Unit = Step | NStep


def derived_fields(unit: NStep, known: list[str], ended_with: set[str]) -> list[str]:
    """Return the fields whose successors a batch gets; none of those for which the user stored `next_<field>`."""
    if unit.next_fields is not None:
        parts = {name: [one for one in known if one == name or one.startswith(f"{name}.")] for name in unit.next_fields}
        unknown = [name for name, found in parts.items() if not found]
        if unknown:
            raise InvalidValue(f"next_fields names {', '.join(unknown)}: the fields are {', '.join(known) or 'none yet'}")
        return [one for found in parts.values() for one in found]
    heads = {name for name in known if name.split(".", 1)[0] in SUCCESSOR_FIELDS}
    return [name for name in known if name in heads | ended_with and f"next_{name}" not in known]


def discounts(unit: NStep, terminated: np.ndarray) -> np.ndarray:
    """Return what the value of the successor counts: gamma ** n, 0 after the end; float64."""
    return np.where(terminated, 0.0, unit.gamma**unit.n)
