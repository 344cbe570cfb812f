"""Stacks of real Atari frames, beside cpprb with `stack_compress` and `next_of`.

Which holds all of them in memory.
"""

import json
import sqlite3
import statistics
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import expdb
from benchmarks.learning import timed
from benchmarks.table import Row, alternate, row
from expdb import NStep
from expdb.chunks.message import read_metadata

GAMES = ("Breakout", "Pong", "MsPacman")
STACK = 4


def played(game: str, steps: int) -> Iterator[dict[str, Any]]:
    """Play a game at random.

    Yield its steps, frames of 84 x 84 bytes (Mnih et al. 2015), `last` after an end.
    """
    import ale_py
    import gymnasium as gym
    from gymnasium.wrappers import AtariPreprocessing

    gym.register_envs(ale_py)
    env = AtariPreprocessing(gym.make(f"ALE/{game}-v5", frameskip=1), frame_skip=4, screen_size=84)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for t in range(steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        ends = terminated or truncated or t == steps - 1
        yield {
            "obs": obs, "action": int(action), "reward": float(reward),
            "terminated": bool(terminated), "truncated": bool(ends and not terminated),
            "last": after if ends else None,
        }  # fmt: skip
        obs = env.reset()[0] if ends else after


class RawFrames:
    """The work that stacks of frames from a file take, whoever does it: no cache, no checks."""

    def __init__(self, path: Path):
        self.connection = sqlite3.connect(path)
        where = "buffer_id = (SELECT id FROM buffers WHERE name = 'b')"
        segments = f"SELECT last, first, chunk, chunk_row FROM segments WHERE {where} ORDER BY last"
        self.segments = np.array(self.connection.execute(segments).fetchall())
        self.read = f"SELECT id, data FROM chunks WHERE {where} AND id IN (SELECT value FROM "
        self.codec = pa.Codec("zstd")
        # Where the frames lie in each chunk: the largest buffer of its message.
        self.places = {}
        for id, data in self.connection.execute(f"SELECT id, data FROM chunks WHERE {where}"):
            metadata = read_metadata(data)
            offset, size = max(metadata.buffers.tolist(), key=lambda extent: extent[1])
            self.places[id] = slice(metadata.body + offset, metadata.body + offset + size)

    def seconds(self, positions: np.ndarray) -> float:
        """Return how long it takes for stacks that end at the positions, and at those after."""
        wanted = positions[:, None] + np.arange(1 - STACK, 2)
        wanted = wanted.clip(0, self.segments[-1, 0])
        frames, places = np.unique(wanted, return_inverse=True)
        places = places.reshape(wanted.shape)
        segment = self.segments[self.segments[:, 0].searchsorted(frames)]
        rows = (segment[:, 3] + frames - segment[:, 1]).tolist()
        ids, opened = segment[:, 2].tolist(), {}
        out = np.empty((len(frames), 84 * 84), np.uint8)
        begun = time.perf_counter()
        statement = self.read + "json_each(?))"
        for id, data in self.connection.execute(statement, (json.dumps(sorted(set(ids))),)):
            zlib.crc32(data)
            part = memoryview(data)[self.places[id]]
            size = int.from_bytes(part[:8], "little", signed=True)
            raw = part[8:] if size < 0 else self.codec.decompress(part[8:], decompressed_size=size)
            opened[id] = np.frombuffer(raw, np.uint8)
        for k, (id, at) in enumerate(zip(ids, rows, strict=True)):
            out[k] = opened[id][at * 84 * 84 : (at + 1) * 84 * 84]
        out.take(places[:, :STACK], 0)
        out.take(places[:, 1:], 0)
        return time.perf_counter() - begun


def frames(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample 32 transitions of stacked frames, in memory and beyond the budget.

    Bytes of a frame in the file.
    """
    import cpprb

    count = 1_500 if quick else 12_000
    path = folder / "atari.db"
    theirs = cpprb.ReplayBuffer(
        count * len(GAMES) + 10,
        {"obs": {"shape": (84, 84, STACK), "dtype": np.uint8}, "action": {"dtype": np.int64},
            "reward": {}, "terminated": {}},
        next_of="obs", stack_compress="obs",
    )  # fmt: skip
    with expdb.open(path) as db:
        for game in GAMES:
            buffer, episode, stack = db.buffer("b"), None, np.empty(0)
            alone = db.buffer(game)
            for t, step in enumerate(played(game, count)):
                last = step.pop("last")
                if episode is None:
                    episode, stack = (
                        buffer.episode(f"{game}/{t}", task_name=game),
                        np.repeat(step["obs"][:, :, None], STACK, 2),
                    )
                    copy = alone.episode(f"{game}/{t}")
                episode.append(**step)
                copy.append(**step)
                after = np.concatenate(
                    (stack[:, :, 1:], (step["obs"] if last is None else last)[:, :, None]), 2
                )
                if t:
                    theirs.add(
                        obs=stack,
                        action=step["action"],
                        reward=step["reward"],
                        terminated=step["terminated"],
                        next_obs=after,
                    )
                stack = after
                if last is not None:
                    episode.end(obs=last)
                    copy.end(obs=last)
                    theirs.on_episode_end()
                    episode = None
        connection = sqlite3.connect(path)
        for game in GAMES:
            stored = connection.execute(
                "SELECT sum(length(data)) FROM chunks WHERE buffer_id = (SELECT id FROM buffers "
                "WHERE name = ?)", (game,)
            ).fetchone()[0]  # fmt: skip
            yield row(
                f"bytes stored a real frame of {game}, with all else of the step / raw frame",
                stored / count / 84**2,
                0.35,
            )
        connection.close()
    unit = NStep(1, gamma=0.99, stack=STACK)
    size = count * len(GAMES) * 84**2
    with (
        expdb.open(path, resident_bytes=2 * size) as within,
        expdb.open(path, resident_bytes=size // 4) as beyond,
    ):
        resident, spilled = within.buffer("b"), beyond.buffer("b")
        for _ in range(200):
            resident.sample(32, unit=unit)
            spilled.sample(32, unit=unit)
        medians = alternate(
            7 if quick else 15, cpprb=timed(lambda: theirs.sample(32), 30),
            within=timed(lambda: resident.sample(32, unit=unit), 30),
            beyond=timed(lambda: spilled.sample(32, unit=unit), 30),
        )  # fmt: skip
        what = "`sample(32)` of real Atari frames, stacks of 4 with what follows"
        yield row(
            f"{what}, in memory / cpprb `stack_compress`, `next_of`",
            medians["within"] / medians["cpprb"],
            1.0,
        )
        yield row(
            "the same, beyond a quarter of the budget / cpprb, all in memory",
            medians["beyond"] / medians["cpprb"],
            12.0,
        )
        raw, ours, theirs = RawFrames(path), list[float](), list[float]()
        for _ in range(20 if quick else 100):
            begun = time.perf_counter()
            batch = spilled.sample(32, unit=unit)
            ours.append(time.perf_counter() - begun)
            theirs.append(raw.seconds(batch["position"]))
        yield row(
            "the same, beyond a quarter of the budget / reading, checking and decompressing the "
            "chunks of the same frames, and copying these out",
            statistics.median(ours) / statistics.median(theirs),
            1.5,
        )
        yield row("(milliseconds of cpprb in this run)", medians["cpprb"] * 1e3, float("inf"), "ms")
