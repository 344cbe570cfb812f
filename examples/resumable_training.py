"""Train a value function that resumes with bit-identical parameters after a kill.

    python examples/resumable_training.py runs.db [steps]

The program saves its parameters every 25 steps. The database records the batch of each step. After
a restart, the program loads the parameters, replays the later batches up to
`consumer.last_trainer_step`, and continues. To try this, kill the program with `kill -9` and start
it again.
"""

import os
import sys

import numpy as np

import expdb

SAVE_EVERY, BATCH, RATE, GAMMA = 25, 32, 0.05, 0.9


def walk(buffer: expdb.ReplayBuffer) -> None:
    """Store 200 random walks over seven states, except stored walks; the right end rewards 1."""
    stored = set(buffer.episodes()["episode_id"].to_pylist())
    for number in range(200):
        if f"walk {number}" in stored:
            continue
        rng, state = np.random.default_rng(number), 3
        with buffer.episode("walk", episode_id=f"walk {number}") as episode:
            while 0 <= state <= 6:
                step = int(rng.choice((-1, 1)))
                at_end = not 0 <= state + step <= 6
                episode.append(
                    obs=np.eye(7)[state], reward=float(state + step > 6), terminated=at_end
                )
                state += step


def update(values: np.ndarray, batch: expdb.Batch) -> np.ndarray:
    """Take one step of TD(0) (Sutton 1988, doi:10.1007/BF00115009)."""
    target = batch["reward"] + batch["discount"] * (batch["next_obs"] @ values)
    error = target - batch["obs"] @ values
    return values + RATE * (error @ batch["obs"])


def save(path: str, step: int, values: np.ndarray) -> None:
    """Save the parameters and the step atomically."""
    with open(f"{path}.new", "wb") as file:
        np.savez(file, step=step, values=values)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def main(location: str, steps: int) -> np.ndarray:
    """Train from the last step until `steps` steps are done; return the values of the states."""
    path = f"{location}.npz"
    with expdb.open(location) as db:
        buffer = db.buffer("walks")
        walk(buffer)
        consumer = buffer.consumer("trainer", seed=1)
        done, values = -1, np.zeros(7)
        if os.path.exists(path):
            with np.load(path) as saved:
                done, values = int(saved["step"]), saved["values"]
        trained = -1 if consumer.last_trainer_step is None else consumer.last_trainer_step
        for batch in buffer.replay("trainer", range(done + 1, trained + 1)):
            values = update(values, batch)
        if trained > done:
            print(f"replayed steps {done + 1} to {trained}", flush=True)
        for step in range(trained + 1, steps):
            with consumer.lease(
                BATCH, unit=expdb.NStep(1, gamma=GAMMA), trainer_step=step
            ) as batch:
                values = update(values, batch)
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                save(path, step, values)
                print(f"saved step {step}", flush=True)
    return values


if __name__ == "__main__":
    learned = main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500)
    print("values", " ".join(value.hex() for value in learned.tolist()))
    print("rounded", np.round(learned, 2))
