"""One side of the comparison, in a process and an environment of its own.

`python worker.py SIDE STEPS`.

It imports nothing of the others. It reads lines of JSON, `{"work": name, "seconds": s, "cold":
c}`, and prints the seconds per call, with `cold` of calls between which 64 MB are read, as a
learner's network leaves the caches. What a work needs is made at its first call.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EPISODE = 200
JUNK = np.ones(64 * 2**20 // 8)
KEYS = ("obs", "action", "reward", "next_obs", "terminated")
Call = Callable[[], Any]


def data(steps: int) -> dict[str, np.ndarray]:
    """Return CartPole-sized steps in episodes of 200, the same for every side."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((steps, 4)).astype(np.float32)
    terminated = np.zeros(steps, np.bool_)
    terminated[EPISODE - 1 :: EPISODE] = True
    return {
        "obs": obs, "action": rng.integers(0, 2, steps), "reward": np.ones(steps),
        "next_obs": np.roll(obs, -1, 0), "terminated": terminated,
    }  # fmt: skip


class Side:
    """What one package does for each work; a work that it has not is not listed by `works`."""

    def __init__(self, steps: int):
        self.steps = steps
        self.folder = Path(tempfile.mkdtemp(prefix="peers-", dir="."))

    def works(self) -> list[str]:
        """Return the names of the works."""
        return [
            name
            for name in ("transitions", "prioritized", "nstep", "sequence", "loader")
            if hasattr(self, name)
        ]


class Expdb(Side):
    """expdb, on a file."""

    def _buffer(self) -> Any:
        import expdb

        if not hasattr(self, "made"):
            self.db = expdb.open(self.folder / "runs.db")
            self.made = self.db.buffer("b")
            columns = data(self.steps)
            del columns["next_obs"]  # it is the next step's
            for start in range(0, self.steps, EPISODE):
                with self.made.episode(f"t{start}") as episode:
                    episode.extend(
                        {name: values[start : start + EPISODE] for name, values in columns.items()}
                    )
        return self.made

    def transitions(self) -> Call:
        import expdb

        buffer, unit = self._buffer(), expdb.NStep(1)
        return lambda: buffer.sample(256, unit=unit, fields=KEYS)

    def prioritized(self) -> Call:
        import expdb

        buffer, unit, sampler = self._buffer(), expdb.NStep(1), expdb.Prioritized()
        fields, errors = (*KEYS, "weight", "position"), np.random.default_rng(0).random(256)

        def call() -> None:
            batch = buffer.sample(256, sampler=sampler, unit=unit, fields=fields)
            buffer.update_priorities(batch["position"], errors)

        return call

    def nstep(self) -> Call:
        import expdb

        buffer, unit = self._buffer(), expdb.NStep(5, gamma=0.99, next_fields=("obs",))
        return lambda: buffer.sample(64, unit=unit)

    def sequence(self) -> Call:
        import expdb

        buffer, unit = self._buffer(), expdb.Sequence(32)
        fields = ("obs", "action", "reward", "terminated", "episode")
        return lambda: buffer.sample(64, unit=unit, fields=fields)

    def loader(self) -> Call:
        import expdb
        from expdb.integrations.torch import Loader, Samples

        buffer = self._buffer()
        buffer.sample(
            4, unit=expdb.NStep(1)
        )  # everything is in memory before the workers are forked
        batches = iter(Loader(Samples(buffer, 256), num_workers=2, multiprocessing_context="fork"))
        return lambda: next(batches)


class Plain(Side):
    """Fancy indexing of plain NumPy arrays."""

    def transitions(self) -> Call:
        columns, rng, steps = data(self.steps), np.random.default_rng(1), self.steps

        def call() -> dict[str, np.ndarray]:
            index = rng.integers(0, steps, 256)
            return {name: values[index] for name, values in columns.items()}

        return call


class Cpprb(Side):
    """cpprb, in memory."""

    shapes = {
        "obs": {"shape": 4},
        "action": {"dtype": np.int64},
        "reward": {},
        "next_obs": {"shape": 4},
        "terminated": {},
    }

    def transitions(self) -> Call:
        from cpprb import ReplayBuffer

        buffer = ReplayBuffer(self.steps, self.shapes)
        buffer.add(**data(self.steps))
        return lambda: buffer.sample(256)

    def prioritized(self) -> Call:
        from cpprb import PrioritizedReplayBuffer

        buffer, errors = (
            PrioritizedReplayBuffer(self.steps, self.shapes),
            np.random.default_rng(0).random(256),
        )
        buffer.add(**data(self.steps))

        def call() -> None:
            buffer.update_priorities(buffer.sample(256)["indexes"], errors)

        return call


class Torchrl(Side):
    """TorchRL, in memory (LazyTensorStorage)."""

    def _filled(self, batch: int, without: str = "", **options: Any) -> Any:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        arrays = data(self.steps)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(self.steps), batch_size=batch, **options
        )
        columns = {
            name: torch.from_numpy(values.copy())
            for name, values in arrays.items()
            if name not in without
        }
        columns["trajectory"] = torch.arange(self.steps) // EPISODE
        buffer.extend(TensorDict(columns, batch_size=[self.steps]))
        return buffer

    def transitions(self) -> Call:
        buffer = self._filled(256)
        return lambda: buffer.sample()

    def prioritized(self) -> Call:
        import torch
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        buffer = self._filled(256, sampler=PrioritizedSampler(self.steps, alpha=0.6, beta=0.4))
        errors = torch.rand(256)

        def call() -> None:
            buffer.update_priority(buffer.sample()["index"], errors)

        return call

    def sequence(self) -> Call:
        from torchrl.data.replay_buffers.samplers import SliceSampler

        buffer = self._filled(
            64 * 32,
            without="next_obs",
            sampler=SliceSampler(slice_len=32, traj_key="trajectory", cache_values=True),
        )
        return lambda: buffer.sample()


class Rllib(Side):
    """RLlib's episode buffers, in memory."""

    def _episodes(self) -> list[Any]:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        columns = data(self.steps)
        return [
            SingleAgentEpisode(
                observations=[*columns["obs"][start : start + EPISODE],
                    columns["obs"][start + EPISODE - 1]],
                actions=columns["action"][start : start + EPISODE].tolist(),
                rewards=columns["reward"][start : start + EPISODE].tolist(), terminated=True,
                len_lookback_buffer=0,
            )
            for start in range(0, self.steps, EPISODE)
        ]  # fmt: skip

    def _buffer(self, kind: str, **options: Any) -> Any:
        from ray.rllib.utils import replay_buffers

        buffer = getattr(replay_buffers, kind)(capacity=self.steps, **options)
        buffer.add(self._episodes())
        return buffer

    def transitions(self) -> Call:
        buffer = self._buffer("EpisodeReplayBuffer")
        return lambda: buffer.sample(batch_size_B=256, batch_length_T=1)

    def prioritized(self) -> Call:
        buffer, errors = (
            self._buffer("PrioritizedEpisodeReplayBuffer", alpha=0.6),
            np.random.default_rng(0).random(256),
        )

        def call() -> None:
            buffer.sample(num_items=256, n_step=1, beta=0.4, gamma=0.99)
            buffer.update_priorities(errors)

        return call

    def nstep(self) -> Call:
        buffer = self._buffer("PrioritizedEpisodeReplayBuffer", alpha=0.6)
        return lambda: buffer.sample(num_items=64, n_step=5, beta=0.4, gamma=0.99)

    def sequence(self) -> Call:
        buffer = self._buffer("EpisodeReplayBuffer")
        return lambda: buffer.sample(batch_size_B=64, batch_length_T=32)


class Ding(Side):
    """DI-engine's DequeBuffer, in memory."""

    def _rows(self) -> list[dict[str, Any]]:
        columns = data(self.steps)
        return [{name: values[k] for name, values in columns.items()} for k in range(self.steps)]

    def transitions(self) -> Call:
        from ding.data.buffer import DequeBuffer

        buffer = DequeBuffer(size=self.steps)
        for row in self._rows():
            buffer.push(row)
        return lambda: buffer.sample(256, replace=True)

    def prioritized(self) -> Call:
        from ding.worker.replay_buffer import AdvancedReplayBuffer
        from easydict import EasyDict

        cfg = AdvancedReplayBuffer.default_config()
        cfg.update(EasyDict(replay_buffer_size=self.steps, deepcopy=False))
        buffer = AdvancedReplayBuffer(cfg, tb_logger=None, exp_name=str(self.folder / "ding"))
        buffer.push(self._rows(), 0)
        errors = np.random.default_rng(0).random(256)

        def call() -> None:
            rows = buffer.sample(256, 0)
            update = {
                name: [row[name] for row in rows]
                for name in ("replay_unique_id", "replay_buffer_idx")
            }
            buffer.update({**update, "priority": errors})

        return call


class Memmap(Side):
    """memmap-replay-buffer: its data loader, shuffled, as it has no other way to draw at random."""

    def _buffer(self) -> Any:
        from memmap_replay_buffer import ReplayBuffer

        columns = data(self.steps)
        buffer = ReplayBuffer(
            str(self.folder / "memmap"), max_episodes=self.steps // EPISODE, max_timesteps=EPISODE,
            fields={"obs": ("float", 4), "action": "int", "reward": "float",
                "next_obs": ("float", 4), "terminated": "bool"},
        )  # fmt: skip
        for start in range(0, self.steps, EPISODE):
            buffer.store_episode(
                **{name: values[start : start + EPISODE] for name, values in columns.items()}
            )
        return buffer

    def _batches(self, size: int, **options: Any) -> Call:
        loader = self._buffer().dataloader(batch_size=size, shuffle=True, **options)
        state: dict[str, Any] = {"batches": iter(loader)}

        def call() -> Any:
            batch = next(state["batches"], None)
            if batch is None:
                state["batches"] = iter(loader)
                batch = next(state["batches"])
            return batch

        return call

    def transitions(self) -> Call:
        return self._batches(256, timestep_level=True)

    def loader(self) -> Call:
        return self._batches(256, timestep_level=True, num_workers=2)

    def nstep(self) -> Call:
        return self._batches(64, n_steps=5)

    def sequence(self) -> Call:
        from memmap_replay_buffer import ReplayDatasetTimeWindow
        from torch.utils.data import DataLoader

        dataset = ReplayDatasetTimeWindow(self._buffer(), window_length=32)
        loader = DataLoader(dataset, batch_size=64, shuffle=True)
        state: dict[str, Any] = {"batches": iter(loader)}

        def call() -> Any:
            batch = next(state["batches"], None)
            if (
                batch is None
                or len(next(iter(batch.values() if hasattr(batch, "values") else batch))) < 64
            ):
                state["batches"] = iter(loader)
                batch = next(state["batches"])
            return batch

        return call


class StableBaselines3(Side):
    """Stable-Baselines3, in memory."""

    def transitions(self) -> Call:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        buffer = ReplayBuffer(
            self.steps,
            Box(-10, 10, (4,), np.float32),
            Discrete(2),
            handle_timeout_termination=False,
        )
        columns = data(self.steps)
        buffer.observations[:, 0], buffer.next_observations[:, 0] = (
            columns["obs"],
            columns["next_obs"],
        )
        buffer.actions[:, 0, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = (
            columns["action"],
            columns["reward"],
            columns["terminated"],
        )
        buffer.full = True
        return lambda: buffer.sample(256)


SIDES: dict[str, type[Side]] = {
    "expdb": Expdb, "numpy": Plain, "cpprb": Cpprb, "torchrl": Torchrl, "rllib": Rllib,
    "ding": Ding, "memmap": Memmap, "sb3": StableBaselines3,
}  # fmt: skip


def timed(call: Call, limit: float, cold: bool) -> float:
    """Return the seconds of a call: the mean of warm ones, or the median of cold ones."""
    begun, taken = time.perf_counter(), list[float]()
    while not taken or (time.perf_counter() - begun < limit and len(taken) < 5000):
        if cold:
            JUNK.sum()
        at = time.perf_counter()
        call()
        taken.append(time.perf_counter() - at)
    return statistics.median(taken) if cold else statistics.fmean(taken)


def main() -> None:
    """Answer until the input ends."""
    side = SIDES[sys.argv[1]](int(sys.argv[2]))
    answers, sys.stdout = sys.stdout, sys.stderr  # packages print
    calls: dict[str, Call] = {}
    print(json.dumps(side.works()), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        name = wanted["work"]
        try:
            if name not in calls:
                calls.clear()  # memory is for one work at a time
                calls[name] = getattr(side, name)()
            call = calls[name]
            answer: dict[str, Any] = {"seconds": timed(call, wanted["seconds"], wanted["cold"])}
        except (
            Exception
        ) as error:  # what a peer cannot do is a line of the table, not the end of it
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
