"""expdb: the experience database for reinforcement-learning and LLM agents.

expdb stores the steps of agents in SQLite or PostgreSQL and samples batches for training. Start
with `open`:

>>> import expdb
>>> with expdb.open(":memory:") as db:
...     buffer = db.buffer("train", capacity=100_000)
...     position = buffer.store(task_id="task_1", action={"tool": "search"}, reward=0.5)
...     batch = buffer.sample(4)
>>> batch["reward"].tolist()
[0.5, 0.5, 0.5, 0.5]
"""

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expdb.api import *  # noqa: F403

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import all public names when the first one is used.

    This keeps NumPy, Arrow and SQLAlchemy out of the help and completion of the command line.
    """
    if (name.startswith("__") and name != "__all__") or "." in name:
        raise AttributeError(f"module 'expdb' has no attribute {name!r}")
    if importlib.util.find_spec(f"expdb.{name}") is not None:
        return importlib.import_module(f"expdb.{name}")
    api = importlib.import_module("expdb.api")
    for public in (*api.__all__, "__all__"):
        globals().setdefault(public, getattr(api, public))
    if name in globals():
        return globals()[name]
    if name == "KEEP":
        warnings.warn("expdb.KEEP is deprecated; use expdb.UNCHANGED", DeprecationWarning, 2)
        return globals()["UNCHANGED"]
    errors = importlib.import_module("expdb.errors")
    if name in errors.__all__:
        replacement = f"expdb.errors.{name}"
        warnings.warn(f"expdb.{name} is deprecated; use {replacement}", DeprecationWarning, 2)
        return getattr(errors, name)
    raise AttributeError(f"module 'expdb' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__getattr__("__all__"), "__all__", "__doc__", "__name__", "__version__"]
