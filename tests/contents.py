"""Functions that return the steps and workers of a buffer as dicts."""

COLUMNS = (
    "position", "episode", "episode_id", "run", "task_id", "task_name", "agent_id", "group_id",
    "status", "policy_version", "first_policy_version", "last_policy_version", "step", "pre_agent",
    "execute_time", "reward", "terminated", "truncated", "tags", "scores", "policy_version_end",
)  # fmt: skip


def steps_of(buffer, where=None):
    """Return the matching steps in the order of their positions, from one snapshot."""
    fields = [*COLUMNS, *buffer.stats()["fields"]]
    steps = next(buffer.scan(where, size=1_000_000, fields=fields), None)
    return [] if steps is None else steps.to_list()


def workers_of(buffer):
    """Return the workers, each with the counters that it has, whole numbers as int."""
    return [
        {**worker, **{key: _known(worker[key]) for key in ("counts", "rates")}}
        for worker in buffer.workers().to_pylist()
    ]


def _known(numbers):
    return {
        name: int(number) if number.is_integer() else number
        for name, number in numbers.items()
        if number is not None
    }
