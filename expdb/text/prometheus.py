"""Format the newest metrics of a database as Prometheus text (version 0.0.4)."""

import re
from collections import defaultdict

import expdb

# Metrics that never decrease; every other metric is a gauge.
COUNTERS = {
    "steps_added", "steps_deleted", "episodes_begun", "episodes_ended", "episode_length_sum",
    "returns", "batches_sampled", "leases", "items_leased", "leases_acknowledged", "scores",
    "actor_wait_seconds", "learner_wait_seconds",
}  # fmt: skip
CONSUMER_COUNTERS = {"leased", "acknowledged"}
# Metrics of the whole database, which the measurements of every buffer repeat.
DATABASE_METRICS = (
    "file_bytes", "free_bytes", "wal_bytes", "connections", "longest_transaction_seconds",
    "dead_rows",
)  # fmt: skip
CONSUMER_METRIC = re.compile(r"consumers\.(.*)\.(\w+)", re.DOTALL)


def prometheus_text(db: expdb.ExperienceDB) -> str:
    """Return the newest metrics of every buffer; empty if nothing has been measured yet.

    Rates and means are left out, because Prometheus computes them from the counters.
    """
    samples: dict[str, list[str]] = defaultdict(list)
    database_values: dict[str, float] = {}
    for buffer in db.buffers():
        table = db.buffer(buffer, create=False).metrics(limit=1)
        if not table.num_rows:
            continue
        for name, value in table.to_pylist()[0].items():
            if value is None or name in RATES_AND_MEANS:
                continue
            if name in DATABASE_METRICS:
                database_values.setdefault(name, value)
                continue
            metric, labels = _name_and_labels(name, buffer)
            samples[metric].append(f"{metric}{labels} {_number(value)}")
    for name, value in database_values.items():
        samples[f"expdb_{name}"].append(f"expdb_{name} {_number(value)}")
    lines = []
    for metric in sorted(samples):
        kind = "counter" if metric.endswith("_total") else "gauge"
        lines += [f"# TYPE {metric} {kind}", *samples[metric]]
    return "".join(f"{line}\n" for line in lines)


RATES_AND_MEANS = (
    "steps_per_second", "episodes_per_second", "batches_per_second", "items_per_second",
    "scores_per_second", "tokens_per_second", "mean_waiting_actors", "mean_waiting_learners",
    "mean_return", "mean_length",
)  # fmt: skip


def _name_and_labels(name: str, buffer: str) -> tuple[str, str]:
    """Return the name of a metric in the text, and its labels."""
    labels = f'buffer="{_escape(buffer)}"'
    match = CONSUMER_METRIC.fullmatch(name)
    if match is not None:
        consumer, name = match.groups()
        ending = "_total" if name in CONSUMER_COUNTERS else ""
        return f"expdb_consumer_{name}{ending}", f'{{{labels},consumer="{_escape(consumer)}"}}'
    if name == "time":
        return "expdb_measured_timestamp_seconds", f"{{{labels}}}"
    return f"expdb_{name}{'_total' if name in COUNTERS else ''}", f"{{{labels}}}"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
