"""Power loss: images of the files that a disk may contain after a power failure."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from unittest import mock

import expdb
from expdb.sql.dialects.sqlite import connection as sqlite_log
from torture.disk import NO_LIBRARY, Disk, Images, library
from torture.oracle import BUFFER, step, verify
from torture.table import Outcome, Place, fault

CHECKPOINT = 256 << 10  # bytes of the WAL; a small value gives a short history many checkpoints


def history(
    path: Path, durability: str, rng: random.Random
) -> tuple[Disk, list[tuple[int, dict[int, tuple[int, int]]]]]:
    """Write to a buffer with a capacity.

    Return the disk with its events, and (number of events, acknowledged steps) after each write.
    """
    acknowledged: dict[int, tuple[int, int]] = {}
    number, marks = 0, list[tuple[int, dict[int, tuple[int, int]]]]()
    with (
        Disk(str(path)) as disk,
        mock.patch.object(sqlite_log, "CHECKPOINT_BYTES", CHECKPOINT),
        expdb.open(path, create=False, durability=durability) as db,
    ):
        buffer = db.buffer(BUFFER)
        for _ in range(150):
            size = rng.choice((1, 1, 1, 4, 30))
            rows = [
                {"task_id": f"t{rng.randrange(4)}", "terminated": rng.random() < 0.1,
                 **step(0, number + k, number, size)}
                for k in range(size)
            ]  # fmt: skip
            stored = [buffer.store(**rows[0])] if size == 1 else buffer.store_batch(rows).tolist()
            acknowledged.update({at: (0, number + k) for k, at in enumerate(stored)})
            number += size
            marks.append((len(disk.events), dict(acknowledged)))
            if rng.random() < 0.1:
                buffer.update({"task_id": f"t{rng.randrange(4)}"}, reward=rng.random())
    return disk, marks


@fault(
    'power loss, durability="{durability}"',
    "0 acknowledged steps lost; with normal, only the newest, since the last checkpoint",
    100, 5_000, durability=("full", "normal"),
)  # fmt: skip
def power_loss(durability: str, place: Place, images: int) -> Outcome:
    """Open images of a history, and compare each with the steps acknowledged before it."""
    if library() is None:
        return Outcome(0, [NO_LIBRARY])
    rng, violations = random.Random(place.seed), list[str]()
    losses, most = 0, 0
    path = place.folder / "power.db"
    with expdb.open(path) as db:
        db.buffer(BUFFER, capacity=300)
    base = path.read_bytes()
    disk, marks = None, []
    for image in range(images):
        if image % 250 == 0:  # another history
            path.write_bytes(base)
            disk, marks = history(path, durability, rng)
            history_of = Images(disk.events, {str(path): base})
        upto = rng.randrange(len(disk.events) + 1)
        acknowledged = next((acks for events, acks in reversed(marks) if events <= upto), {})
        folder = place.folder / "image"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        history_of.write(upto, folder, rng)
        try:
            with expdb.open(folder / path.name, create=False) as db:
                problems = verify(db, acknowledged, tail_may_be_lost=durability == "normal")
                lost = len(acknowledged) - db.buffer(BUFFER).stats()["added"]
        except expdb.ExpDBError as error:
            problems, lost = [f"cannot be opened: {error}"], 0
        violations += [f"image after event {upto}: {problem}" for problem in problems]
        if lost > 0:
            losses, most = losses + 1, max(most, lost)
    note = f"{losses} images lost acknowledged steps, at most {most}"
    return Outcome(images, violations, note if durability == "normal" else "")
