"""Configure Sphinx. `python3 dev.py docs` builds the site in `docs/_build/html`."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from check_docstrings import NOT_CONSTRUCTED

project = "expdb"
author = "the authors of expdb"
version = release = installed_version("expdb")
extensions = [
    "myst_parser",
    "numpydoc",
    "schema_reference",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"expdb {release}"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_js_files = [("search.js", {"defer": "defer"})]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings describe types, shapes and units
numpydoc_show_class_members = False  # the reference pages list them


def hide_constructor(
    app: Any, what: str, name: str, item: Any, options: Any, signature: str, returned: str
) -> tuple[str, None] | None:
    """Hide the signature of classes that users get from other calls."""
    return ("", None) if what == "class" and name in NOT_CONSTRUCTED else None


def setup(app: Any) -> None:
    """Connect the hook; Sphinx calls this function."""
    app.connect("autodoc-process-signature", hide_constructor)
