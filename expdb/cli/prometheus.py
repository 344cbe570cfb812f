"""Format the newest metrics of a database as Prometheus text (version 0.0.4)."""

import re
from collections import defaultdict

import expdb

# Names of counters in the text; every other figure is a gauge named `expdb_<figure>`.
COUNTERS = {
    "added": "steps_added", "deleted": "steps_deleted", "episodes_added": "episodes_begun",
    "episodes": "episodes_ended", "groups_admitted": "groups_admitted",
    "length_sum": "episode_length_sum", "returns": "returns", "batches": "batches_sampled",
    "leases": "leases", "items": "items_leased", "acknowledged": "leases_acknowledged",
    "scores": "scores", "held_seconds": "actor_held_seconds",
    "waited_seconds": "learner_waited_seconds",
}  # fmt: skip
OF_CONSUMERS = {"leased": "consumer_leases_total", "acknowledged": "consumer_acknowledged_total"}
# Figures of the whole database, which the metrics of every buffer repeat.
OF_DATABASE = (
    "file_bytes", "free_bytes", "wal_bytes", "connections", "longest_transaction_seconds",
    "dead_rows",
)  # fmt: skip
CONSUMER = re.compile(r"consumers\.(.*)\.(\w+)", re.DOTALL)


def prometheus_text(db: expdb.ExperienceDB) -> str:
    """Return the newest metrics of every buffer; empty if nothing has been measured yet.

    Rates and means are left out, because Prometheus computes them from the counters.
    """
    samples: dict[str, list[str]] = defaultdict(list)
    newest: dict[str, float] = {}
    for name in db.buffers():
        table = db.buffer(name, create=False).metrics()
        if not table.num_rows:
            continue
        figures = table.slice(table.num_rows - 1).to_pylist()[0]
        for figure, value in figures.items():
            if value is None or figure in DERIVED:
                continue
            if figure in OF_DATABASE:
                newest.setdefault(figure, value)
                continue
            metric, labels = _named(figure, name)
            samples[metric].append(f"{metric}{labels} {_number(value)}")
    for figure, value in newest.items():
        samples[f"expdb_{figure}"].append(f"expdb_{figure} {_number(value)}")
    lines = []
    for metric in sorted(samples):
        kind = "counter" if metric.endswith("_total") else "gauge"
        lines += [f"# TYPE {metric} {kind}", *samples[metric]]
    return "".join(f"{line}\n" for line in lines)


DERIVED = (
    "steps_per_second", "episodes_per_second", "batches_per_second", "items_per_second",
    "scores_per_second", "tokens_per_second", "actors_held", "learners_waiting", "return_mean",
    "length_mean",
)  # fmt: skip


def _named(figure: str, buffer: str) -> tuple[str, str]:
    """Return the name of a metric and its labels."""
    labels = f'buffer="{_escape(buffer)}"'
    match = CONSUMER.fullmatch(figure)
    if match is not None:
        consumer, figure = match.groups()
        metric = OF_CONSUMERS.get(figure, f"consumer_{figure}")
        return f"expdb_{metric}", f'{{{labels},consumer="{_escape(consumer)}"}}'
    if figure == "time":
        return "expdb_measured_timestamp_seconds", f"{{{labels}}}"
    metric = f"{COUNTERS[figure]}_total" if figure in COUNTERS else figure
    return f"expdb_{metric}", f"{{{labels}}}"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
