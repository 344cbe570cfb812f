"""Measure expdb and its peers and print the table of docs/explanation/performance.md.

`python3 dev.py peers [--quick] [--write docs/explanation/performance.md]`.

Each peer is installed, if it can be, into an environment of its own, as they exclude each other's
versions of NumPy; each side is a process, and all of them are measured in turns, a fraction of a
second at a time, with warm caches and with cold ones. A figure is the median of one side's rounds
as a multiple of expdb's in the same rounds; the table gives the median of three runs, and the least
and the greatest of them.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
TORCH = "torch==2.13.0"
PEERS = {
    "cpprb": ("cpprb", ["cpprb"]),
    "torchrl": ("TorchRL", [TORCH, "torchrl"]),
    "rllib": ("RLlib", [TORCH, "ray[rllib]"]),
    "ding": ("DI-engine", ["DI-engine"]),
    "memmap": ("memmap-replay-buffer", [TORCH, "memmap-replay-buffer"]),
    "sb3": ("Stable-Baselines3", [TORCH, "stable-baselines3"]),
}
NAMES = {
    "expdb": "expdb (file)",
    "numpy": "NumPy arrays",
    **{side: name for side, (name, _) in PEERS.items()},
}
WORKS = {
    "transitions": "256 transitions of five keys",
    "prioritized": "the same, prioritized, + update",
    "nstep": "5-step transitions, 64",
    "sequence": "sequences of 32 steps, 64",
    "loader": "batches of 256 from a data loader, 2 workers",
}
AHEAD = ("loader",)  # made by other processes before they are asked for
BEGIN, END = "<!-- peers -->", "<!-- /peers -->"


def environment(side: str) -> Path | None:
    """Return the Python that has a peer, made where it is missing.

    None where it cannot be installed.
    """
    folder = Path(os.environ.get("EXPDB_PEERS", ROOT / ".venv-peers")) / side
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"installing {NAMES[side]}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *PEERS[side][1]], capture_output=True, text=True
    )
    if done.returncode:
        print(
            f"{NAMES[side]} cannot be installed: {done.stderr.strip().splitlines()[-1:]}",
            file=sys.stderr,
        )
        return None
    (folder / "ready").touch()
    return python


class Worker:
    """One side, running."""

    def __init__(self, side: str, python: Path, steps: int, folder: Path):
        command = [python, WORKER, side, str(steps)]
        self.log = (folder / f"{side}.log").open("w")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.works: list[str] = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "it ended"}

    def measure(self, work: str, seconds: float, cold: bool) -> dict[str, Any]:
        """Return how long a call takes."""
        assert self.process.stdin is not None
        try:
            wanted = {"work": work, "seconds": seconds, "cold": cold}
            self.process.stdin.write(json.dumps(wanted) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "it ended"}
        return self._answer()  # type: ignore[no-any-return]

    def end(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait()
        self.log.close()


Figures = dict[str, dict[str, float | None]]  # seconds of a call of each side, by work


def compare(steps: int, rounds: int, sides: dict[str, Path], works: list[str]) -> Figures:
    """Return the seconds a call of each side takes, by work, warm and cold; None where it fails."""
    figures: Figures = {}
    for work in works:
        with tempfile.TemporaryDirectory(prefix="expdb-peers-", dir=ROOT) as folder:
            workers = {
                side: Worker(side, python, steps, Path(folder)) for side, python in sides.items()
            }
            try:
                taking_part = {
                    side: worker for side, worker in workers.items() if work in worker.works
                }
                for cold in (False, True)[: 1 if work in AHEAD else 2]:
                    figures[work + " cold" * cold] = _in_turns(taking_part, work, rounds, cold)
            finally:
                for worker in workers.values():
                    worker.end()
    return figures


def _in_turns(
    workers: dict[str, Worker], work: str, rounds: int, cold: bool
) -> dict[str, float | None]:
    times: dict[str, list[float]] = {side: [] for side in workers}
    failed: dict[str, float | None] = {}
    taking_part = list(workers)
    for number in range(rounds + 2):  # two to make ready and to warm up
        for side in list(taking_part):
            answer = workers[side].measure(work, 0.4 if cold else 0.2, cold)
            if "error" in answer:
                print(f"{NAMES[side]}, {work}: {answer['error']}", file=sys.stderr)
                failed[side] = None
                taking_part.remove(side)
            elif number > 1:
                times[side].append(answer["seconds"])
    medians = {side: statistics.median(values) for side, values in times.items() if values}
    for side, seconds in medians.items():
        print(
            f"{work}{' cold' * cold}: {NAMES[side]} {seconds * 1e6:.0f} us, it / expdb = "
            f"{seconds / medians['expdb']:.3g}", file=sys.stderr, flush=True,
        )  # fmt: skip
    return {**medians, **failed}


def table(runs: list[Figures], absent: list[str], steps: int) -> str:
    """Return the table, in Markdown: the time of each as a multiple of expdb's."""
    shown = [side for side in NAMES if any(side in row for row in runs[0].values())]
    lines = [f"| | {' | '.join(NAMES[side] for side in shown)} |", "|---" * (len(shown) + 1) + "|"]
    for work in runs[0]:
        name = WORKS[work.removesuffix(" cold")]
        if work.endswith(" cold"):
            name += ", cold"
        cells = [_cell([run[work] for run in runs], side) for side in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    missing = f" Not installed: {', '.join(NAMES[side] for side in absent)}." if absent else ""
    lines += [
        "",
        f"Time of a call as a multiple of expdb's, {steps:,} steps: the median of {len(runs)} "
        f"run{'s' * (len(runs) > 1)}, and the least and the greatest. Cold: 64 MB were read since "
        f"the last call. {os.cpu_count()} cores, Python {platform.python_version()}.{missing}",
    ]
    return "\n".join(lines)


def _cell(rows: list[dict[str, float | None]], side: str) -> str:
    if side not in rows[0]:
        return "-"
    ratios = []
    for row in rows:
        theirs, ours = row[side], row["expdb"]
        if not theirs or not ours:
            return "fails"
        ratios.append(theirs / ours)
    ratios.sort()
    middle = _times(statistics.median(ratios))
    if side == "expdb" or len(ratios) == 1:
        return middle
    return f"{middle} ({_times(ratios[0])} to {_times(ratios[-1])})"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer steps and rounds: to try it out"
    )
    parser.add_argument("--only", choices=WORKS, action="append", help="measure only this work")
    parser.add_argument(
        "--write", type=Path, help="put the table into this file, between its marks"
    )
    parser.add_argument("--json", type=Path, help="write the seconds there as well")
    arguments = parser.parse_args()
    steps, rounds, runs = (20_000, 3, 1) if arguments.quick else (1_000_000, 9, 3)
    pythons = {side: environment(side) for side in PEERS}
    here = Path(sys.executable)
    sides = {
        "expdb": here,
        "numpy": here,
        **{side: python for side, python in pythons.items() if python is not None},
    }
    works = arguments.only or list(WORKS)
    figures = [compare(steps, rounds, sides, works) for _ in range(runs)]
    text = table(figures, [side for side, python in pythons.items() if python is None], steps)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    if arguments.write:
        page = arguments.write.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        arguments.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
