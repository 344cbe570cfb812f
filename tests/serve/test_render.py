"""Tests that stored values become text, HTML and pictures without active content."""

import io
import math

import matplotlib.image
import numpy as np
import pytest

from expdb.serve import render

# Texts that would run, load or hide something if a page trusted them.
HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>", "<iframe src='javascript:alert(1)'></iframe>",
    "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](java\tscript:alert(1))",
    "[x](&#106;avascript:alert(1))", "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:msgbox(1))", "![x](http://203.0.113.1/a.png)", "![x](javascript:alert(1))",
    "![x][y]\n\n[y]: http://203.0.113.1/b.png", "<http://203.0.113.1/auto>",
    "<javascript:alert(1)>", "<style>*{background:url(http://203.0.113.1)}</style>",
    "<link rel=stylesheet href=http://203.0.113.1/c.css>", "<base href=http://203.0.113.1>",
    "<meta http-equiv=refresh content='0;url=http://203.0.113.1'>",
    "<form action=http://203.0.113.1><button>x</button></form>", "<a href=# onclick=alert(1)>x</a>",
    "<details open ontoggle=alert(1)>", "<video src=http://203.0.113.1 onerror=alert(1)>",
    "<math><mtext><style><img src=x onerror=alert(1)>", "\"><script>alert(1)</script>",
    "'><script>alert(1)</script>", "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>", "{{ 7 * 7 }}", "{% raw %}", "${alert(1)}",
    "```html\n<script>alert(1)</script>\n```", "`<script>alert(1)</script>`",
    "[x](http://203.0.113.1 \"onmouseover=alert(1)\")", "[x]: javascript:alert(1)\n\n[x]",
    "\x1b[31mred\x1b]8;;http://203.0.113.1\x07", "a\u202egnp.exe",
    "zero\u200bwidth\u2066isolate\u2069",
    "\x00\x01\x7f\x9b", "| a |\n|---|\n| <script>alert(1)</script> |", "x" * 1_000_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_markdown_of_hostile_text_has_no_active_content(text):
    html = str(render.markdown(text)).lower()
    for tag in ("<script", "<img", "<svg", "<iframe", "<style", "<link", "<base", "<meta", "<form",
                "<video", "<math", "<details"):  # fmt: skip
        assert tag not in html
    for link in html.split('href="')[1:]:
        assert link.startswith(("http://", "https://", "mailto:", "#"))
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert len(html) < 30_000


def test_markdown_keeps_its_structure():
    html = str(
        render.markdown("# T\n\n**b** `c`\n\n| a |\n|---|\n| 1 |\n\n[l](https://example.org)")
    )
    for part in ("<h1>T</h1>", "<strong>b</strong>", "<code>c</code>", "<td>1</td>",
                 'rel="noreferrer noopener nofollow"'):  # fmt: skip
        assert part in html


def test_control_and_invisible_characters_are_escaped():
    assert render.readable("a\u202eb\x1b[1m\n\tc\u200b") == "a\\u202eb\\u001b[1m\n\tc\\u200b"
    assert render.readable("é日本👍") == "é日本👍"


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 3), (8, 9, 4)])
def test_pictures_are_encoded_losslessly(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert render.is_image(image)
    read = matplotlib.image.imread(io.BytesIO(render.png(image)))
    expected = image[:, :, 0] if shape[2:] == (1,) else image
    np.testing.assert_array_equal(np.round(read * 255).astype(np.uint8), expected)


@pytest.mark.parametrize(
    "value",
    [np.zeros(9, np.uint8), np.zeros((8, 9, 2), np.uint8), np.zeros((8, 9)),
     np.zeros((2, 9), np.uint8), b"text", 1],
)  # fmt: skip
def test_other_values_are_not_pictures(value):
    assert not render.is_image(value)


def test_encoded_pictures_are_recognised_by_their_first_bytes():
    assert render.media_type(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert render.media_type(b"<svg></svg>") is None
    assert render.media_type("text") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, render.MISSING), (math.nan, render.MISSING), (1234567, "1,234,567"), (2.0, "2"),
     (4360.4, "4,360"), (0.12345, "0.1235"), (12345.6, "12,346"), (math.inf, "inf"),
     (1e300, "1e+300"), (np.float32(0.5), "0.5")],
)  # fmt: skip
def test_numbers_are_formatted_briefly(value, text):
    assert render.number(value) == text


def test_long_values_are_truncated():
    assert len(render.value_text("x" * 10_000_000)) < 2_100
    assert render.value_text(np.zeros((3, 4))).startswith("float64 3 x 4: [0., 0.")
    assert render.value_text({"a": "\x1b"}) == '{\n "a": "\\u001b"\n}'
    assert render.value_text(b"\x00\xff") == "2 bytes: 00 ff"


def test_json_has_no_nan():
    assert render.plain([1.0, math.nan, np.float32(math.inf), np.array([1, 2])]) == [
        1.0,
        None,
        None,
        [1, 2],
    ]


def test_tables_with_very_many_cells_are_shown_as_text():
    table = "|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + "a\n" * 9_000
    html = str(render.markdown(table))
    assert html.startswith("<pre>")
    assert "<td>" not in html
