"""Names in the public interface: view columns, arguments of `store`, and keys of batches."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

# The columns of the view `experience`, separately for each table, with their types. "integer?" is
# an integer that may be missing.
_OF_STEPS = {
    "position": "integer",
    "episode": "integer",
    "step": "integer",
    "agent_id": "text",
    "pre_agent": "text",
    "execute_time": "real",
    "reward": "real",
    "terminated": "flag",
    "truncated": "flag",
    "priority": "real",
    "tags": "json",
    "scores": "json",
    "policy_version": "integer?",
    "policy_version_end": "integer?",
}
_OF_EPISODES = {
    "episode_id": "text",
    "run": "text",
    "task_id": "text",
    "task_name": "text",
    "agent_id": "text",
    "group_id": "text",
    "status": "text",
    "length": "integer",
    "episode_return": "real",
    "policy_version": "integer?",
    "first_policy_version": "integer?",
    "last_policy_version": "integer?",
    "episode_tags": "json",
    "started": "real",
    "ended": "real",
    "parent_episode": "integer?",
    "parent_step": "integer?",
    "parent_position": "integer?",
    "relation": "text",
    "root_episode": "integer",
    "trainable": "flag",
}
STEP_COLUMNS, EPISODE_COLUMNS = tuple(_OF_STEPS), tuple(_OF_EPISODES)
COLUMN_KINDS = {**_OF_STEPS, **_OF_EPISODES}
SCORE = re.compile(r"scores\.([A-Za-z0-9_]{1,64})")  # names the latest score of a step


def kind_of(name: str) -> str | None:
    """Return the kind of a column of the view `experience`, or None if there is no such column."""
    return "real" if SCORE.fullmatch(name) else COLUMN_KINDS.get(name)


# The keys that `Tokens` computes, in their order.
TOKEN_KEYS = (
    "input_ids", "attention_mask", "loss_mask", "logprobs", "position_ids", "segment_ids",
    "advantage", "policy_version", "token_step", "token_index", "turn_of_token", "rollout",
    "reward", "episode",
    "loss_tokens", "lost_tokens", "rollouts", "rollout_weight",
)  # fmt: skip

# In this view, `agent_id` and `policy_version` are those of the step, or of its episode if the step
# has none. In the view `experience_episodes`, they are those of the episode.
VIEW_COLUMNS = tuple(dict.fromkeys(("buffer", *STEP_COLUMNS, *EPISODE_COLUMNS, "payload")))
# The columns of the view `experience_episodes`.
EPISODE_VIEW_COLUMNS = ("buffer", "episode", *EPISODE_COLUMNS, "steps_held")
# The columns of `ReplayBuffer.draws` with their kinds. `experience_draws` has further columns.
DRAW_COLUMNS = {
    "consumer": "text", "lease": "integer", "batch": "integer", "status": "text",
    "leased_at": "real", "trainer_step": "integer", "position": "integer", "probability": "real",
}  # fmt: skip
VIEWS = {
    "experience": VIEW_COLUMNS,
    "experience_episodes": EPISODE_VIEW_COLUMNS,
    "experience_scores": (
        "buffer", "id", "episode_id", "task_id", "group_id", "position", "name", "value",
        "scored_by", "status", "detail", "scored",
    ),
    "experience_draws": ("buffer", *DRAW_COLUMNS, "step", "episode", "episode_id", "task_id"),
}  # fmt: skip

# Arguments of `store` in addition to the fields: for the step, and for its episode.
STEP_KEYS = (
    "step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags",
    "policy_version", "policy_version_end", "agent_id",
)  # fmt: skip
# Arguments that describe the episode; the other arguments in EPISODE_KEYS identify it.
EPISODE_DETAILS = ("task_name", "group_id", "policy_version", "episode_tags", "trainable")
# Arguments that relate an episode to another one; they apply when the episode begins.
RELATION_KEYS = ("parent", "parent_step", "relation")
# Arguments of a step that must be absent or equal those of its episode.
BEGINNING_KEYS = (*(name for name in EPISODE_DETAILS if name != "policy_version"), *RELATION_KEYS)
EPISODE_KEYS = ("task_id", "agent_id", "episode_id", *EPISODE_DETAILS, *RELATION_KEYS)

# Relations of an episode to its parent. Forks and retries share the first steps of the parent.
RELATIONS = ("fork", "retry", "subagent", "continuation", "compaction")
FORK_RELATIONS = ("fork", "retry")
# Episodes that count as rollouts of a group by default; "root" stands for no parent.
ROLLOUT_RELATIONS = ("root", *FORK_RELATIONS)

COLUMNS = tuple(dict.fromkeys((*EPISODE_KEYS, *STEP_KEYS)))
# Names that other libraries use for columns of expdb.
COLUMN_SYNONYMS = {
    **dict.fromkeys(("rewards", "rew"), "reward"),
    **dict.fromkeys(
        ("done", "dones", "terminal", "terminals", "is_terminal", "is_done", "finished"),
        "terminated",
    ),
    **dict.fromkeys(("truncate", "truncation", "timeout", "timeouts"), "truncated"),
    "task": "task_id",
    "agent": "agent_id",
    "group": "group_id",
}

# Keys of a batch that no field can have.
BATCH_KEYS = (
    "discount",
    "n_steps",
    "mask",
    "length",
    "is_first",
    "weight",
    "probability",
    "group_member",
    "shared_steps",
    "group_size",
    "group_mean",
    "group_std",
    "episode_score",
)
GIVEN_SUCCESSORS = ("next_obs", "next_observation", "next_state")

# If these columns of an episode are equal, every step of the episode has this policy version.
EPISODE_VERSION_COLUMNS = ("policy_version", "first_policy_version", "last_policy_version")
# Stands for the index of a row, or a position, that does not exist or is unknown.
UNKNOWN = -1

# Default names of the fields that contain the observation of the agent.
OBSERVATIONS = ("obs", "observation", "state")


_UNKNOWN_NAME = re.compile(
    r"""no\ such\ (column|table|function):\ ([\w.]+)    # SQLite
    | (column|relation|function)\ "?([\w.]+)"?(?:\(.*\))?\ does\ not\ exist""",
    re.VERBOSE,
)


def suggest_for_sql_error(message: str, query: str, fields: Iterable[str]) -> str:
    """Return advice for an SQL error about an unknown name, given the error message."""
    match = _UNKNOWN_NAME.search(message)
    kind, full_name = (match[1] or match[3], (match[2] or match[4])) if match else ("", "")
    qualifier, _, name = full_name.rpartition(".")
    views = [view for view in VIEWS if re.search(rf"\b{view}\b", query, re.IGNORECASE)]
    if kind == "column":
        if qualifier in ("tags", "episode_tags"):
            return f"tags are JSON, so write json_extract({qualifier}, '$.{name}')"
        if name in fields:
            view = "" if "experience" in views else " and query the view experience"
            return f"{name} is a field, so write field(payload, '{name}'){view}"
        columns = {column for view in views or VIEWS for column in VIEWS[view]} - {name}
        near = difflib.get_close_matches(name, [*sorted(columns), *fields], 1, 0.6)
        if near and near[0] in columns:
            return f"did you mean {near[0]}?"
        if near:
            return f"did you mean the field {near[0]}? Write field(payload, '{near[0]}')"
        return f"SELECT * FROM {(views or ['experience'])[-1]} LIMIT 1 shows the columns"
    if "cannot modify" in message or "read-only transaction" in message:
        return "SQL can only read; use buffer.update() or buffer.delete()"
    return f"the views are {', '.join(list(VIEWS)[:-1])} and {list(VIEWS)[-1]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ", did you mean ...?" with the most similar known name.

    Return an empty string if no known name is similar.
    """
    matches = difflib.get_close_matches(name, list(names), 1, 0.72)
    return f", did you mean {matches[0]!r}?" if matches else ""


def build_attribute_error(
    kind: str, name: str, names: Iterable[str], instead: Mapping[str, str], otherwise: str = ""
) -> AttributeError:
    """Return the error for an attribute that a class lacks, with a suggestion."""
    if name in instead:
        return AttributeError(f"{kind} has no attribute {name!r}; use {instead[name]}")
    near = nearest(
        name, [known_name for known_name in names if not known_name.startswith("_")]
    ).removeprefix(", ")
    hint = near or ("" if name.startswith("_") else otherwise)
    return AttributeError(f"{kind} has no attribute {name!r}{f'; {hint}' if hint else ''}")


def public_names(names: Iterable[str]) -> list[str]:
    """Return the names that completion should show: all but the private ones."""
    return [name for name in names if not name.startswith("_") or name.startswith("__")]


STORE_CALL = "store(task_id=..., obs=..., action=..., reward=...)"
# Method names of other libraries, and the call of a buffer for each.
BUFFER_HINTS = {
    **dict.fromkeys(("add", "append", "insert", "push", "put", "write"), STORE_CALL),
    **dict.fromkeys(("extend", "add_batch", "push_batch"), "store_batch(rows)"),
    **dict.fromkeys(("size", "length"), "len(buffer)"),
    **dict.fromkeys(("query", "find", "filter", "where", "steps"), "scan(where)"),
    **dict.fromkeys(("sql", "execute"), "db.sql(query)"),
    **dict.fromkeys(("save", "commit"), "store(), which returns after the step is durable"),
    **dict.fromkeys(("remove", "pop", "erase"), "delete(where)"),
    **dict.fromkeys(("reset", "empty"), "clear()"),
    "flush": "flush() of the object that writer() or episode() returns",
    "end": "end_episode(episode_id), or end() of the object that episode() returns",
    **dict.fromkeys(("dataloader", "iterate", "batches"), "sample(size) in a loop"),
}


class NotACollection:
    """Base class of `ReplayBuffer`: reject names and operators that a buffer does not have."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Reject an unknown setting, such as the misspelt `buffer.policy_verison = 7`."""
        if not name.startswith("_") and not hasattr(type(self), name):
            settings = "capacity", "policy_version", "rate_limiter", "pace", "eviction"
            raise AttributeError(
                f"a buffer has no setting {name!r}{nearest(name, settings) or ';'} the settings "
                f"are {', '.join(settings)}"
            )
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return public_names(super().__dir__())

    def __getattr__(self, name: str) -> NoReturn:
        raise build_attribute_error("a ReplayBuffer", name, dir(type(self)), BUFFER_HINTS)

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a ReplayBuffer is not iterable; scan() yields its steps in batches, and page(1, 100) "
            "returns them as dicts"
        )

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(
            "a ReplayBuffer cannot be indexed; use get([position]), sample(size) or scan(where)"
        )


# Method names of other libraries, and the call of a database for each.
DATABASE_HINTS = {
    **dict.fromkeys(("execute", "query", "select"), "sql(query)"),
    **dict.fromkeys(("tables", "list_buffers"), "buffers()"),
    **dict.fromkeys(("table", "collection", "create_buffer"), "buffer(name)"),
    **dict.fromkeys(
        ("commit", "flush", "save"),
        "store(), which returns after the step is durable, or flush() of a writer",
    ),
    "sample": "buffer(name).sample(size)",
    "store": "buffer(name).store(...)",
}


class _DefaultTask(str):
    """The task of steps that were stored without a `task_id`."""

    __slots__ = ()


DEFAULT_TASK = _DefaultTask("default")
MANY_EPISODES = 1000  # episodes without a task_id before a writer warns


class TaskReminder:
    """Count the episodes that end without a task_id, and return one warning if there are many."""

    def __init__(self) -> None:
        self._episodes = 0

    def count_step(self, task_id: str, has_ended: bool) -> str | None:
        """Count a step; return the warning if it is due."""
        if task_id is not DEFAULT_TASK or not has_ended:
            return None
        self._episodes += 1
        if self._episodes != MANY_EPISODES:
            return None
        return (
            f"{MANY_EPISODES:,} episodes were stored without task_id, so they belong to one "
            "task; pass task_id=... to separate tasks, or task_id='default' if there is only one "
            "task"
        )
