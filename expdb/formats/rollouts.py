"""Items that readers of formats yield: rollouts to import, and unreadable records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.fields import Field
from expdb.names import EPISODE_DETAILS
from expdb.storage.writing.batches import rows_of

# Columns of an episode that a record of another format cannot have.
OF_EXPORTS = ("episode_return", "length", "first_policy_version", "last_policy_version")
EPISODE_NAMES = (
    "episode_id", "task_id", "agent_id", *EPISODE_DETAILS, "parent", "parent_step", "relation",
    "run", "started", "ended", "status", *OF_EXPORTS,
)  # fmt: skip
RECORD_NAMES = tuple(name for name in EPISODE_NAMES if name not in OF_EXPORTS)


@dataclass
class Rollout:
    """One record to import, as an episode.

    Attributes
    ----------
    record : str
        Identity of the record, such as its own id or a hash of its content.
    digest : bytes
        Hash of the content of the record.
    episode : dict
        Columns of the episode: the arguments of `ReplayBuffer.episode`, and `run`, `started`,
        `ended`, `status` and `episode_return`. `episode_id` is required. If `length` is
        greater than the number of steps, the first steps of the episode are missing.
    steps : list of dict, or dict of sequences
        Arguments of `ReplayBuffer.store` for each step, without those of the episode; or columns
        of them.
    final : dict or None
        Final observation: fields after the last step.
    scores : list of dict
        Scores of the episode: `name`, `value`, `by`, `status` and `detail` as for
        `ReplayBuffer.score`, `scored` for the time, and `step` for the index of the step to score.
    annotations : list of tuple
        Name, version or None, index of the step, and array of each annotation.
    priorities : list of float
        Priority of each step, NaN for none; empty if no step has a priority.
    types : dict
        Types of fields that the buffer may not have yet, as for ``db.buffer(fields=)``.
    has_json_text : bool
        Whether the values of JSON fields are JSON text.
    source : str
        Where the record comes from, such as ``chats.jsonl:17``. Messages contain it.
    """

    record: str
    digest: bytes
    episode: dict[str, Any]
    steps: list[dict[str, Any]] | dict[str, Sequence[Any]]
    final: dict[str, Any] | None = None
    scores: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[tuple[str, int | None, int, np.ndarray]] = field(default_factory=list)
    priorities: list[float] = field(default_factory=list)
    types: Mapping[str, Field | str] = field(default_factory=dict)
    has_json_text: bool = False
    source: str = ""

    @property
    def length(self) -> int:
        """The number of steps, an int."""
        if isinstance(self.steps, dict):
            return len(next(iter(self.steps.values()), ()))
        return len(self.steps)

    @property
    def first_step(self) -> dict[str, Any]:
        """The arguments of `store` for the first step, a dict."""
        return dict(next(rows_of(self.steps), {}))

    @property
    def last_step(self) -> dict[str, Any]:
        """The arguments of `store` for the last step, a dict."""
        if isinstance(self.steps, dict):
            return {name: column[-1] for name, column in self.steps.items()}
        return dict(self.steps[-1]) if self.steps else {}


class Unreadable(NamedTuple):
    """A record that cannot be read.

    Attributes
    ----------
    source : str
        Where the record is, such as ``chats.jsonl:17``.
    reason : str
        The problem and the remedy.
    """

    source: str
    reason: str


@dataclass
class ImportReport:
    """What an import did.

    Attributes
    ----------
    episodes : int
        Number of episodes that were stored.
    steps : int
        Number of steps that were stored.
    known : int
        Number of records that were skipped, because they had been imported before.
    replaced : int
        Number of stored episodes that replaced an earlier version of their record.
    refused : list of str
        One message for each record that could not be imported, with the source, the problem and
        the remedy.
    """

    episodes: int = 0
    steps: int = 0
    known: int = 0
    replaced: int = 0
    refused: list[str] = field(default_factory=list)

    def refuse(self, source: str, reason: object) -> None:
        """Add the message for a record that cannot be imported."""
        self.refused.append(f"{source}: {reason}")

    def add(self, other: "ImportReport") -> None:
        """Add the numbers and messages of another report."""
        self.episodes += other.episodes
        self.steps += other.steps
        self.known += other.known
        self.replaced += other.replaced
        self.refused += other.refused
