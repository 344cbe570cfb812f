"""Names that users meet: columns of the views, arguments of `store`, keys of batches."""

# The columns of the view `experience`, by the table they come from.
STEP_COLUMNS = (
    "position",
    "episode",
    "step",
    "pre_agent",
    "execute_time",
    "reward",
    "terminated",
    "truncated",
    "priority",
    "tags",
)
EPISODE_COLUMNS = (
    "episode_id",
    "run",
    "task_id",
    "task_name",
    "agent_id",
    "group_id",
    "status",
    "length",
    "episode_return",
    "policy_version",
    "episode_tags",
    "started",
    "ended",
)
VIEW_COLUMNS = ("buffer", *STEP_COLUMNS, *EPISODE_COLUMNS, "payload")
# Those of the view `experience_episodes`.
EPISODE_VIEW_COLUMNS = ("buffer", "episode", *EPISODE_COLUMNS, "steps_held")

# Arguments of `store` beside the fields: those of the step, and those of its episode.
STEP_KEYS = ("step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags")
EPISODE_KEYS = (
    "task_id",
    "agent_id",
    "task_name",
    "episode_id",
    "group_id",
    "policy_version",
    "episode_tags",
)

COLUMNS = (*EPISODE_KEYS, *STEP_KEYS)
# What others call our columns.
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
    "group_size",
    "group_mean",
    "group_std",
)
GIVEN_SUCCESSORS = ("next_obs", "next_observation", "next_state")

# Stands for a row, or a position, that is not there or not known.
UNKNOWN = -1

# Fields that hold what the agent sees, by default.
OBSERVATIONS = ("obs", "observation", "state")


def views_for_people() -> str:
    """Return what ad-hoc SQL can name, for people who named something else."""
    return (
        f"the view experience has {', '.join(VIEW_COLUMNS)}; experience_episodes has "
        f"{', '.join(EPISODE_VIEW_COLUMNS)}; "
        "fields such as action are field(payload, 'action')"
    )
