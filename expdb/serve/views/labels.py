"""Store scores and tags that a reviewer gives."""

import re
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

import expdb
from expdb.serve.pages import buffer_of, episode_url, in_few_threads, source_of
from expdb.serve.views.episode import find_episode
from expdb.text.conditions import value_of

BY = "expdb serve"
MAX_BYTES = 16_384
MAX_CONCURRENT_LABELS = 8  # they may wait for other writers, and must not delay events of pages


async def label(request: Request) -> Response:
    """Store a score or a tag of an episode."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            return PlainTextResponse(f"the form must have at most {MAX_BYTES:,} bytes\n", 413)
    values = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    limit = "label_limiter", MAX_CONCURRENT_LABELS
    return await in_few_threads(request, *limit, _label, request, values)


def _label(request: Request, values: dict[str, str]) -> Response:
    source = source_of(request)
    buffer = source.writable(buffer_of(request).name)
    row = find_episode(buffer, unquote(request.path_params["episode"]))
    name = values.get("name", "").strip()
    user = values.get("by", "").strip() or BY
    if values.get("kind") == "tag":
        _tag(buffer, row["episode_id"], name, values.get("value", ""))
    else:
        text = values.get("value", "")
        try:
            value = float(text)
        except ValueError:
            raise expdb.InvalidValue(
                f"a score must be a number, such as 0.5, got {text!r}"
            ) from None
        buffer.score(name=name, value=value, episode_id=row["episode_id"], by=user)
    return RedirectResponse(episode_url(buffer.name, row["episode_id"]), 303)


def _tag(buffer: expdb.ReplayBuffer, episode_id: str, name: str, text: str) -> None:
    """Set a tag of an episode."""
    if re.fullmatch(r"[A-Za-z0-9_]{1,64}", name) is None:
        raise expdb.InvalidValue(
            f"the name of a tag must consist of 1 to 64 letters, digits and _, got {name!r}"
        )
    value = value_of(text.strip()) if text.strip() else True
    buffer.update({"episode_id": episode_id}, episode_tags={name: value})
