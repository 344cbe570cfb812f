"""Store, query, sample and update steps, and run SQL.

Run the program twice: the second run finds the steps of the first run.
"""

import sys

import numpy as np

import expdb
from expdb import QueryBuilder

path = sys.argv[1] if len(sys.argv) > 1 else "quickstart.db"
rng = np.random.default_rng()

with expdb.open(path) as db:
    buffer = db.buffer("train", capacity=100_000)
    print(f"{path} contains {len(buffer)} steps")

    # Store one step. The step is durable when store() returns. You choose the names of fields.
    position = buffer.store(
        task_id="task_1",
        task_name="book flight",
        agent_id="agent_1",
        state={"content": "a flight to Oslo, please"},
        action={"tool": "search", "arguments": {"to": "OSL"}},
        reward=0.5,
        tags={"difficulty": "hard"},
        terminated=True,
    )
    print("stored at position", position)

    # Store an episode. At the end of the block, expdb has written all its steps.
    control = db.buffer("control", capacity=100_000)
    with control.episode("pendulum/1", task_name="pendulum") as episode:
        obs = rng.standard_normal(3, dtype=np.float32)
        for t in range(100):
            action = rng.uniform(-1, 1)
            episode.append(obs=obs, action=action, reward=-abs(action), truncated=t == 99)
            obs = rng.standard_normal(3, dtype=np.float32)
        episode.end(obs=obs)  # the observation after the last step

    # Sample the steps that match a query.
    hard = QueryBuilder().eq("tags.difficulty", "hard").and_().gte("reward", 0.5)
    print(buffer.count(hard), "hard steps in tasks", buffer.tasks(hard))
    batch = control.sample(32, {"task_name": "pendulum"}, unit=expdb.NStep(1, gamma=0.99))
    print({name: (array.dtype.name, array.shape) for name, array in batch.items()})
    for task, steps in buffer.sample_tasks(1, hard).items():
        print(task, steps["action"][0])

    # Set a reward later, and query the steps with SQL.
    buffer.update(hard, reward=1.0, which="last")
    table = db.sql(
        "SELECT task_name, count(*) AS steps, avg(reward) AS reward, max(field(payload, 'action')) "
        "AS an_action "
        "FROM experience WHERE buffer = :name GROUP BY 1",
        {"name": "train"},
    )
    print(table.to_pylist())
    assert db.check() == []
