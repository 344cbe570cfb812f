"""Store scores and tags that a reviewer gives."""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

import expdb
from expdb.cli.conditions import value_of
from expdb.serve.pages import buffer_of, episode_url, source_of
from expdb.serve.views.episode import find_episode

BY = "expdb serve"
MOST_BYTES = 16_384


async def label(request: Request) -> Response:
    """Store a score or a tag of an episode."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return PlainTextResponse(f"a form has at most {MOST_BYTES} bytes\n", 413)
    values = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    return await asyncio.to_thread(_label, request, values)


def _label(request: Request, values: dict[str, str]) -> Response:
    source = source_of(request)
    buffer = source.writable(buffer_of(request).name)
    row = find_episode(buffer, unquote(request.path_params["episode"]))
    name = values.get("name", "").strip()
    user = values.get("by", "").strip() or BY
    if values.get("kind") == "tag":
        _tag(buffer, row, name, values.get("value", ""))
    else:
        value = value_of(values.get("value", "").strip())
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise expdb.InvalidValue(f"a score must be a number, got {values.get('value')!r}")
        buffer.score(name=name, value=float(value), episode_id=row["episode_id"], by=user)
    return RedirectResponse(episode_url(buffer.name, row["episode_id"]), 303)


def _tag(buffer: expdb.ReplayBuffer, row: dict[str, Any], name: str, text: str) -> None:
    """Set a tag of an episode."""
    if not name:
        raise expdb.InvalidValue("a tag needs a name")
    tags = json.loads(row["episode_tags"]) if row["episode_tags"] else {}
    tags[name] = value_of(text.strip()) if text.strip() else True
    buffer.update({"episode_id": row["episode_id"]}, episode_tags=tags)
