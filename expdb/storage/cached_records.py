"""Records of episodes and admissions that a process keeps between transactions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from expdb import errors
from expdb.names import EPISODE_DETAILS, FORK_RELATIONS


class AdmissionLimit(NamedTuple):
    """The number of groups that a buffer may admit, computed from one read of its pace.

    The limit is valid while the pace is unchanged and no group under way began before version
    `oldest`. A newer policy version only raises the limit, so an outdated limit never admits too
    many groups.
    """

    pace_json: str  # the pace as stored
    oldest: int  # policy version of the oldest group under way; without one, of the buffer
    max_begun: int  # number of groups that may have begun in total


class ParentLink(NamedTuple):
    """The relation of an episode to its parent."""

    name: str | None  # `episode_id` of the parent; None if it is no longer stored
    step: int | None  # number of the step of the parent at which the episode begins
    relation: str  # one of `names.RELATIONS`
    episode: int | None = None  # number of the parent; None until it is found
    root: int | None = None  # number of the first episode of the tree
    position: int | None = None  # position of the last shared step
    shared: int = 0  # number of shared steps
    oldest: int | None = None  # smallest policy version of the shared steps

    @property
    def columns(self) -> tuple[Any, ...]:
        """The values of `PARENT_COLUMNS`, in this order."""
        return self.episode, self.step, self.position, self.relation, self.root, self.shared

    def check_number(self, episode_id: str, number: int) -> None:
        """Raise InvalidValue if a step of a fork has the number of a shared step."""
        if self.relation in FORK_RELATIONS and self.step is not None and number < self.step:
            raise errors.InvalidValue(
                f"episode {episode_id!r} is a {self.relation} at step {self.step}, so it shares "
                f"step {number} with its parent; number its steps from {self.step} on"
            )


PARENT_COLUMNS = (
    "parent_episode", "parent_step", "parent_position", "relation", "root_episode", "shared_steps",
)  # fmt: skip


@dataclass(eq=False)
class EpisodeRecord:
    """An episode that this process writes. Records are compared and hashed by identity.

    Before the first step is stored, `id` is None. A write changes a copy, which `changed` returns.
    After the commit, `become` copies the new values into the record.
    """

    episode_id: str
    run: str
    task_id: str
    agent_id: str
    task_name: str | None = None
    group_id: str | None = None
    policy_version: int | None = None
    episode_tags: str | None = None
    trainable: bool | None = None  # None for True
    started: float = 0.0
    id: int | None = None
    length: int = 0
    last_step: int | None = None
    ordered: bool = True
    last_position: int = -1
    generation: int = 0  # number of times that a writer has resumed the episode
    may_resume: bool = False  # whether the writer would have continued a stored episode
    is_over: bool = False  # whether the last step of a resumed episode is terminated or truncated
    # Version of the steps that have none of their own; by default that of the episode.
    step_version: int | None = None
    # Whether any stored step uses `policy_version`, the version of the episode.
    uses_version: bool = True
    gained: float | None = None  # sum of the rewards written by this process or found by it
    # The greatest step number of each agent; the key None is the agent of the episode. The
    # attribute is None until a write of this process needs the numbers.
    greatest: dict[str | None, int] | None = None
    # No agent that `greatest` lacks has a greater number; None if it has no number.
    unknown_greatest: int | None = None
    parent: ParentLink | None = None

    @property
    def own_length(self) -> int:
        """The number of steps of the episode, without shared steps."""
        return self.length - (0 if self.parent is None else self.parent.shared)

    @property
    def last_shared_step(self) -> int | None:
        """The number of the last step that the episode shares with its parent, if any."""
        link = self.parent
        return link.step - 1 if link is not None and link.shared and link.step else None

    def become(self, other: "EpisodeRecord") -> None:
        """Copy all values of another record."""
        vars(self).update(vars(other))

    def changed(self, **values: Any) -> "EpisodeRecord":
        """Return a copy with changed values; `dataclasses.replace` takes ten times as long."""
        copy = object.__new__(EpisodeRecord)
        vars(copy).update(vars(self), **values)
        return copy

    def columns(self) -> dict[str, Any]:
        """Return the columns that are stored when the episode begins."""
        return {name: getattr(self, name) for name in BEGINNING}


BEGINNING = ("episode_id", "run", "task_id", "agent_id", *EPISODE_DETAILS, "started")
