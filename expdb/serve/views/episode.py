"""One episode: its transcript, pictures, tokens and draws."""

from typing import Any
from urllib.parse import unquote

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

import expdb
from expdb import errors
from expdb.serve import render, transcript
from expdb.serve.pages import buffer_of, integer, show, source_of

MAX_STEPS = 5_000  # first steps of an episode that the plots and the list of draws cover
TOKENS_PER_PAGE = 5_000
NEWEST_LEASES = 1_000  # leases per consumer that are searched for the episode
MAX_WIDTH = 4_096  # episode numbers that are searched together for the next episode


def find_episode(buffer: expdb.ReplayBuffer, episode_id: str) -> dict[str, Any]:
    """Return the row of an episode; raise UnknownEpisode if there is no such episode."""
    rows: list[dict[str, Any]] = buffer.episodes({"episode_id": episode_id}).to_pylist()
    if not rows:
        raise errors.UnknownEpisode(
            f"buffer {buffer.name!r} has no episode {episode_id!r}; the episode may have been "
            "evicted or deleted"
        )
    return rows[0]


def find_neighbours(buffer: expdb.ReplayBuffer, number: int) -> tuple[str | None, str | None]:
    """Return the ids of the next newer and the next older episode with steps."""
    older = buffer.episodes(limit=1, before=number)["episode_id"].to_pylist()
    newest = buffer.episodes(limit=1, after=number)["episode"].to_pylist()
    newer: list[str] = []
    searched, width = number, 16  # no newer episode up to `searched` has steps
    while newest and not newer and searched < newest[0]:
        end = searched + width
        newer = buffer.episodes(after=searched, before=end + 1)["episode_id"].to_pylist()
        searched, width = end, min(4 * width, MAX_WIDTH)
    return (newer[0] if newer else None), (older[0] if older else None)


def episode(request: Request) -> Response:
    """Show an episode, from the step number `from` in the address."""
    source, buffer = source_of(request), buffer_of(request)
    row = find_episode(buffer, unquote(request.path_params["episode"]))
    first = max(0, integer(request, "from", 0) or 0)
    steps, following = transcript.read_steps(source, buffer, row, first)
    newer, older = find_neighbours(buffer, row["episode"])
    scores = buffer.scores({"episode_id": row["episode_id"]}).to_pylist()
    parent, parents = row["parent_episode"], list[str]()  # no element if it was evicted
    if parent is not None:
        parents = buffer.episodes(after=parent - 1, before=parent + 1)["episode_id"].to_pylist()
    return show(
        request, "episode.html", title=f"Episode {row['episode_id']}", buffer=buffer.name,
        episode=row, steps=steps, first=first, following=following, newer=newer, older=older,
        scores=scores[-50:], parents=parents,
    )  # fmt: skip


def series(request: Request) -> Response:
    """Return the reward and the numeric fields of the steps of an episode, as JSON."""
    source, buffer = source_of(request), buffer_of(request)
    episode_id = unquote(request.path_params["episode"])
    numbers = [name for name, type in source.fields(buffer.name).items() if type.is_scalar]
    rows: list[dict[str, Any]] = []
    where = {"episode_id": episode_id}
    for batch in buffer.scan(where, fields=["step", "reward", *numbers], size=1_000):
        rows += batch.to_list()
        if len(rows) > MAX_STEPS:
            break
    is_cut = len(rows) > MAX_STEPS
    rows = sorted(rows[:MAX_STEPS], key=lambda row: int(row["step"]))
    plots = []
    for name in ("reward", *numbers):
        values = render.plain([row[name] for row in rows])
        if any(value is not None for value in values):
            plots.append({"title": name, "series": [{"name": name, "values": values}]})
    steps = [int(row["step"]) for row in rows]
    return JSONResponse({"step": steps, "plots": plots, "is_cut": is_cut})


def _step_at(buffer: expdb.ReplayBuffer, position: int, names: list[str]) -> dict[str, Any]:
    """Return fields of one step; missing fields are None."""
    row: dict[str, Any] = buffer.get([position], fields=names).to_list()[0]
    return row


def tokens(request: Request) -> Response:
    """Return the tokens of a step, and its fields with one value per token, as JSON."""
    source, buffer = source_of(request), buffer_of(request)
    position, first = request.path_params["position"], max(0, integer(request, "first", 0) or 0)
    names = [name for name, type in source.fields(buffer.name).items() if type.is_per_token]
    row = _step_at(buffer, position, names)
    stored = {name: value for name, value in row.items() if isinstance(value, np.ndarray)}
    wanted = request.query_params.get("of", "output_ids")
    if wanted not in stored:
        wanted = next((name for name, value in stored.items() if value.dtype.kind in "iu"), "")
    if not wanted:
        return JSONResponse({"of": "", "fields": [], "count": 0})
    ids = stored[wanted]
    end = first + TOKENS_PER_PAGE
    return JSONResponse(
        {
            "of": wanted,
            "fields": sorted(name for name, value in stored.items() if value.dtype.kind in "iu"),
            "count": len(ids),
            "first": first,
            "tokens": render.plain(ids[first:end]),
            "colours": {
                name: render.plain(value[first:end].astype(np.float64).round(4))
                for name, value in stored.items()
                if name != wanted and len(value) == len(ids)
            },
        }
    )


def picture(request: Request) -> Response:
    """Return a field of a step as a picture."""
    buffer, name = buffer_of(request), unquote(request.path_params["field"])
    value = _step_at(buffer, request.path_params["position"], [name])[name]
    headers = {"cache-control": "private, max-age=3600"}
    if media := render.media_type(value):
        return Response(bytes(value), headers=headers, media_type=media)
    if render.is_image(value):
        return Response(render.png(value), headers=headers, media_type="image/png")
    return PlainTextResponse("the step has no picture in this field\n", 404)


def text(request: Request) -> Response:
    """Return a whole field of a step as plain text."""
    buffer, name = buffer_of(request), unquote(request.path_params["field"])
    value = _step_at(buffer, request.path_params["position"], [name])[name]
    return PlainTextResponse(render.value_text(value, 50_000_000))


def draws(request: Request) -> Response:
    """Show the leases that contain the episode or its steps."""
    source, buffer = source_of(request), buffer_of(request)
    episode_id = unquote(request.path_params["episode"])
    statement = (
        "SELECT position, step FROM experience WHERE buffer = :buffer AND episode_id = :episode "
        f"ORDER BY position LIMIT {MAX_STEPS}"
    )
    of_episode = {"buffer": buffer.name, "episode": episode_id}
    table = source.db.sql(statement, of_episode)
    steps = dict(zip(table["position"].to_pylist(), table["step"].to_pylist(), strict=True))
    rows = buffer.draws(list(steps), limit=NEWEST_LEASES).to_pylist()[::-1] if steps else []
    history = buffer.why(next(iter(steps))) if steps else []
    return show(
        request, "draws.html", title="Draws", buffer=buffer.name, rows=rows[:500], steps=steps,
        episode_id=episode_id, limit=NEWEST_LEASES, most_steps=MAX_STEPS, count=len(rows),
        reasons=[line for line in history if "cannot lease" in line],
    )  # fmt: skip
