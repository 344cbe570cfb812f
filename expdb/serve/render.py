"""Turn stored values into text, HTML and pictures; stored text is never trusted."""

import json
import math
import re
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
from markdown_it import MarkdownIt
from markupsafe import Markup

MISSING = "\N{EN DASH}"  # stands for an unknown value
LONG_TEXT = 20_000  # characters of a text that a page shows
LONG_VALUE = 2_000  # characters of any other value that a page shows
# Characters without width, and characters that change the direction of text.
INVISIBLE = {
    *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x061C, 0xFEFF,
}  # fmt: skip
_NOT_PLAIN = re.compile(r"[^\n\t -~]")

# Raw HTML is shown as text. Images are disabled because browsers load them from other hosts.
_markdown = MarkdownIt("commonmark", {"html": False, "breaks": True, "linkify": False})
_markdown.enable(["table", "strikethrough"]).disable(["image"])
MAX_TABLE_CELLS = 5_000  # cells of tables in one text


def _validate_link(url: str) -> bool:
    return url.lower().startswith(("http://", "https://", "mailto:", "#"))


_markdown.validateLink = _validate_link  # type: ignore[method-assign]


def _open_link(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    tokens[index].attrSet("rel", "noreferrer noopener nofollow")
    tokens[index].attrSet("target", "_blank")
    return str(self.renderToken(tokens, index, options, env))


_markdown.add_render_rule("link_open", _open_link)


def readable(text: str) -> str:
    """Return text with visible escapes for control and invisible characters."""
    return _NOT_PLAIN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() and ord(character) not in INVISIBLE:
        return character
    return f"\\u{ord(character):04x}"


def markdown(text: str) -> Markup:
    """Return Markdown as HTML without scripts, styles, images or raw HTML."""
    shown = readable(text[:LONG_TEXT])
    lines = shown.split("\n")
    if len(lines) * max(line.count("|") for line in lines) > MAX_TABLE_CELLS:
        return Markup("<pre>{}</pre>").format(shown)
    return Markup(_markdown.render(shown))


def is_number(value: Any) -> bool:
    """Return whether a value is one number."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))


def number(value: Any, digits: int = 4) -> str:
    """Return a number as short text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}"
    if math.isfinite(value) and (float(value).is_integer() or abs(value) >= 10**digits):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:g}"
    return f"{float(value):,.{digits}g}"


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 step" or "2 steps"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def nbytes(value: float | None) -> str:
    """Return a number of bytes as short text."""
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return ""


def duration(seconds: float | None) -> str:
    """Return a time span as short text."""
    if seconds is None:
        return MISSING
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def time_text(seconds: float | None) -> str:
    """Return a time in UTC as text."""
    if seconds is None:
        return MISSING
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):  # outside of the years 1 to 9999
        return f"{seconds} s"


def value_text(value: Any, limit: int = LONG_VALUE) -> str:
    """Return any stored value as short readable text."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, (bytes, bytearray)):
        text = f"{len(value):,} bytes: {bytes(value[: limit // 2]).hex(' ')}"
    elif isinstance(value, np.ndarray):
        shape = " x ".join(map(str, value.shape))
        shown = np.array2string(value.reshape(-1)[:200], threshold=200, separator=", ")
        text = f"{value.dtype} {shape}: {shown}"
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    else:
        text = number(value) if is_number(value) else str(value)
    text = readable(text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + " …"


def is_image(value: Any) -> bool:
    """Return whether a value is a picture: uint8, sides of 8 to 4096, 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return False
    channels = value.shape[2] if value.ndim == 3 else 1
    return channels in (1, 3, 4) and min(value.shape[:2]) >= 8 and max(value.shape[:2]) <= 4096


def png(image: np.ndarray) -> bytes:
    """Encode a picture as PNG (https://www.w3.org/TR/png-3/), without filters."""
    height, width = image.shape[:2]
    channels = image.shape[2] if image.ndim == 3 else 1
    color_type = {1: 0, 3: 2, 4: 6}[channels]
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


def media_type(data: Any) -> str | None:
    """Return the media type of bytes that are an encoded picture, or None."""
    if isinstance(data, (bytes, bytearray)):
        for magic, media in PICTURES.items():
            if data.startswith(magic):
                return media
    return None


def plain(value: Any) -> Any:
    """Return a value as JSON can represent it: NaN and infinity become null."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
