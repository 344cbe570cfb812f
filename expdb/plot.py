"""Plot the returns, lengths and rewards of the episodes of a buffer.

The curves are grouped by task, run, agent or policy version.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import expdb
from expdb import errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 8  # maximum number of curves in one picture; more curves cannot be distinguished
PANELS = {
    "return": "return of an episode",
    "length": "steps of an episode",
    "reward": "mean reward of a step",
}
ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Curve:
    """The results of the complete episodes of one group, oldest episode first."""

    name: str
    steps: np.ndarray  # cumulative number of steps, including each episode
    values: dict[str, np.ndarray]  # by panel, smoothed; NaN for unknown values


By = Literal["task", "run", "agent", "policy_version"]


def curves(
    buffer: expdb.ReplayBuffer, by: By = "task", *, where: Any = None, smooth: int | None = None
) -> tuple[list[Curve], int]:
    """Return the curves of the groups with the most episodes, and the number of all groups.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    by : {"task", "run", "agent", "policy_version"}
        The grouping of the episodes. Tasks are grouped by name, or by id if they have no name.
    where : query, optional
        Query that selects the episodes with a matching step.
    smooth : int, optional
        Number of episodes in each moving average. By default, a fiftieth of the episodes of the
        curve.

    Returns
    -------
    list of Curve
        At most eight curves.
    int
        The number of all groups.
    """
    episodes = buffer.episodes(where).to_pylist()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in episodes:
        if row["status"] == "complete" and row["length"]:
            named = {
                "task": row["task_name"] or row["task_id"],
                "run": row["run"],
                "agent": row["agent_id"],
                "policy_version": _version(row),
            }
            groups.setdefault(named[by], []).append(row)
    chosen = sorted(groups, key=lambda name: -len(groups[name]))[:MOST]
    plotted = []
    for name in sorted(
        chosen, key=lambda name: (len(name), name) if by == "policy_version" else (0, name)
    ):
        rows = sorted(groups[name], key=lambda row: row["ended"] or 0.0)
        length = np.array([row["length"] for row in rows], np.float64)
        gained = np.array([row["episode_return"] for row in rows], np.float64)  # None becomes NaN
        window = max(1, len(rows) // 50) if smooth is None else smooth
        values = {"return": gained, "length": length, "reward": gained / length}
        plotted.append(
            Curve(
                _printable(name),
                length.cumsum(),
                {panel: _smooth(series, window) for panel, series in values.items()},
            )
        )
    return plotted, len(groups)


def _version(row: dict[str, Any]) -> str:
    return "no version" if row["policy_version"] is None else str(row["policy_version"])


def draw(plotted: list[Curve], title: str) -> Figure:
    """Return a matplotlib figure with panels for returns, lengths and rewards."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise errors.DriverMissing(
            "drawing a picture requires matplotlib; run `pip install 'expdb[plot]'`"
        ) from None
    with matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "expdb"}):
        # Math is off because names may contain a dollar sign.
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        for axes, (panel, label) in zip(
            figure.subplots(1, len(PANELS)), PANELS.items(), strict=True
        ):
            for curve in plotted:
                values = curve.values[panel]
                alone = np.isfinite(values).sum() == 1  # a line of one point is invisible
                axes.plot(
                    curve.steps,
                    values,
                    label=curve.name,
                    linewidth=1.4,
                    marker="o" if alone else None,
                )
            axes.set_xlabel("steps")
            axes.set_title(label, fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        handles = figure.axes[0].get_lines()
        figure.legend(
            handles,
            [curve.name for curve in plotted],
            loc="outside lower center",
            ncols=4,
            frameon=False,
            fontsize=9,
        )
        figure.suptitle(title, fontsize=11)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, depending on the suffix of the path.

    Equal curves result in identical files.
    """
    import matplotlib

    if path.suffix.lower() not in ENDINGS:
        raise expdb.InvalidValue(
            f"the name of a picture must end in {', '.join(ENDINGS)}, got {path.name!r}"
        )
    with (
        matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "expdb"}),
        warnings.catch_warnings(),
    ):
        # Letters that the font lacks are drawn as boxes; the warning does not help.
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(
            path,
            dpi=150,
            metadata={}
            if path.suffix.lower() == ".png"
            else {"Date" if path.suffix.lower() == ".svg" else "CreationDate": None},
        )


def characters(plotted: list[Curve], width: int, height: int = 14) -> Iterator[str]:
    """Yield a text picture of each panel that has values."""
    try:
        import plotext
    except ImportError:
        raise errors.DriverMissing(
            "a picture in the terminal requires plotext; run `pip install 'expdb[plot]'`"
        ) from None
    for panel, label in PANELS.items():
        shown = [curve for curve in plotted if np.isfinite(curve.values[panel]).any()]
        if not shown:
            continue
        plotext.clear_figure()
        plotext.theme("pro")
        plotext.plot_size(width, height)
        for curve in shown:
            is_finite = np.isfinite(curve.values[panel])
            plotext.plot(
                curve.steps[is_finite].tolist(),
                curve.values[panel][is_finite].tolist(),
                label=curve.name,
                marker="braille",
            )
        plotext.title(label)
        plotext.xlabel("steps")
        yield str(plotext.build())


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the moving average of the known values over `window` values.

    The average is NaN where no value of the window is known.
    """
    if window == 1:
        return values.copy()
    is_number = ~np.isnan(values)
    # Differences of cumulative sums lose digits, so use the longest float type.
    sums = np.cumsum(np.where(is_number, values, 0.0), dtype=np.longdouble)
    total, count = (
        np.concatenate(([0.0], cumulative)) for cumulative in (sums, np.cumsum(is_number))
    )
    index = np.arange(1, len(values) + 1)
    first = np.maximum(index - window, 0)
    number = count[index] - count[first]
    means: np.ndarray = np.full(len(values), np.nan)
    has_values = number > 0
    means[has_values] = (total[index] - total[first])[has_values] / number[has_values]
    return means


def _printable(name: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in name)
    return text if len(text) <= 28 else f"{text[:27]}…"
