"""The ledger: leases, the items of a lease, the history of a step, and random transcripts."""

import random
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

import expdb
from expdb.serve import transcript
from expdb.serve.pages import buffer_of, integer, show, source_of

LEASES = 100
MAX_ITEMS = 2_000
STEP_COLUMNS = ("position", "episode_id", "step", "task_id", "reward", "policy_version")
RANDOM = 10
RANDOM_STEPS = 12
RANDOM_LEASES = 200  # newest leases that are searched for a trainer step
RECENT_EPISODES = 1_000


def ledger(request: Request) -> Response:
    """Show the newest leases; the address can restrict the consumer and the trainer step."""
    buffer = buffer_of(request)
    consumer = request.query_params.get("consumer") or None
    step = integer(request, "step")
    newest = LEASES if step is None else 50 * LEASES
    rows = buffer.leases(consumer, limit=newest).to_pylist()[::-1]
    if step is not None:
        rows = [row for row in rows if row["trainer_step"] == step]
    return show(
        request, "ledger.html", title="Ledger", buffer=buffer.name, leases=rows[:LEASES],
        consumers=buffer.consumers(), consumer=consumer, step=step, limit=newest,
    )  # fmt: skip


def lease(request: Request) -> Response:
    """Show the items of a lease."""
    buffer = buffer_of(request)
    consumer, id = unquote(request.path_params["consumer"]), request.path_params["lease"]
    draws = buffer.draws(consumer=consumer, lease=id).to_pylist()
    rows = _with_steps(buffer, draws[:MAX_ITEMS])
    return show(
        request, "lease.html", title=f"Lease {id}", buffer=buffer.name, consumer=consumer,
        lease=draws[0] if draws else None, id=id, rows=rows, count=len(draws),
    )  # fmt: skip


def _with_steps(buffer: expdb.ReplayBuffer, draws: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return draws with columns of their steps, which are None if a step is no longer stored."""
    positions = sorted({draw["position"] for draw in draws})
    columns: dict[int, dict[str, Any]] = {}
    if positions:
        for batch in buffer.scan(positions, fields=STEP_COLUMNS, size=len(positions)):
            columns.update({row["position"]: row for row in batch.to_list()})
    missing = dict.fromkeys(STEP_COLUMNS)
    return [missing | columns.get(draw["position"], {}) | draw for draw in draws]


def step(request: Request) -> Response:
    """Show the history of a step, and why it cannot be leased now."""
    buffer, position = buffer_of(request), request.path_params["position"]
    rows = _with_steps(buffer, [{"position": position}])
    draws = buffer.draws([position]).to_pylist()[::-1]
    return show(
        request, "step.html", title=f"Step at position {position}", buffer=buffer.name,
        position=position, row=rows[0], lines=buffer.why(position), draws=draws,
    )  # fmt: skip


def random_transcripts(request: Request) -> Response:
    """Show ten random episodes of a trainer step, by default the newest one."""
    source, buffer = source_of(request), buffer_of(request)
    wanted = integer(request, "step")
    leases = buffer.leases(status="acknowledged", limit=RANDOM_LEASES).to_pylist()
    steps = sorted({row["trainer_step"] for row in leases if row["trainer_step"] is not None})
    if wanted is None and steps:
        wanted = steps[-1]
    chosen = [row for row in leases if row["trainer_step"] == wanted] if steps else []
    episode_ids = _episodes_of_leases(buffer, chosen)
    is_recent = not chosen
    if is_recent:
        episode_ids = buffer.episodes(limit=RECENT_EPISODES)["episode_id"].to_pylist()
    picked = random.sample(episode_ids, min(RANDOM, len(episode_ids)))
    rows = _episodes(buffer, picked)
    shown = transcript.read_many(source, buffer, picked, 0, RANDOM_STEPS)
    rollouts = [{"row": row, "steps": shown.get(row["episode_id"], [])} for row in rows]
    return show(
        request, "random.html", title="Random transcripts", buffer=buffer.name, rollouts=rollouts,
        step=wanted, steps=steps[-20:], is_recent=is_recent, recent=RECENT_EPISODES,
        searched=RANDOM_LEASES,
    )  # fmt: skip


def _episodes_of_leases(buffer: expdb.ReplayBuffer, leases: list[dict[str, Any]]) -> list[str]:
    ids: set[str] = set()
    for row in leases[-20:]:
        draws = buffer.draws(consumer=row["consumer"], lease=row["lease"]).to_pylist()
        ids |= {
            item["episode_id"] for item in _with_steps(buffer, draws[:MAX_ITEMS])
            if item["episode_id"] is not None
        }  # fmt: skip
    return sorted(ids)


def _episodes(buffer: expdb.ReplayBuffer, ids: list[str]) -> list[dict[str, Any]]:
    """Return the rows of episodes in the order of their ids."""
    if not ids:
        return []
    rows = buffer.episodes(expdb.QueryBuilder().in_("episode_id", ids)).to_pylist()
    return sorted(rows, key=lambda row: ids.index(row["episode_id"]))
