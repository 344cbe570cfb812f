"""Stacks of real Atari frames, beside cpprb with `stack_compress` and `next_of`.

Which holds all of them in memory.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks.learning import timed
from benchmarks.table import Row, alternate, row
from expdb import NStep

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
        expdb.open(path, resident_bytes=2 * size) as held,
        expdb.open(path, resident_bytes=size // 4) as beyond,
    ):
        one, two = held.buffer("b"), beyond.buffer("b")
        for _ in range(200):
            one.sample(32, unit=unit)
            two.sample(32, unit=unit)
        found = alternate(
            7 if quick else 15, cpprb=timed(lambda: theirs.sample(32), 30),
            held=timed(lambda: one.sample(32, unit=unit), 30),
            beyond=timed(lambda: two.sample(32, unit=unit), 30),
        )  # fmt: skip
        what = "`sample(32)` of real Atari frames, stacks of 4 with what follows"
        yield row(
            f"{what}, in memory / cpprb `stack_compress`, `next_of`",
            found["held"] / found["cpprb"],
            0.9,
        )
        yield row(
            "the same, beyond a quarter of the budget / cpprb, all in memory",
            found["beyond"] / found["cpprb"],
            12.0,
        )
        yield row("(milliseconds of cpprb in this run)", found["cpprb"] * 1e3, float("inf"), "ms")
