"""Write and read the databases in `tests/data`, which contain values of every kind.

Each version of the schema adds its own files. Run `python tests/kept_files.py` in a checkout of
that version to write `<revision>.db`, `<revision>.sql` (a dump of PostgreSQL) and `<revision>.json`
(the values of both).
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from contents import workers_of

import expdb
from expdb import formats

DATA = Path(__file__).parent / "data"
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip
COLUMNS = (
    "step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "priority", "tags",
    "episode", "episode_id", "run", "task_id", "task_name", "agent_id", "group_id", "status",
    "length", "episode_return", "policy_version", "policy_version_end", "first_policy_version",
    "last_policy_version", "episode_tags", "scores",
)  # fmt: skip
STATS = "steps", "capacity", "added", "fields", "optional_fields", "episodes", "tasks"


def write(location: str) -> None:
    """Write the history into a new database."""
    rng = np.random.default_rng(7)
    with expdb.open(location, run="first run") as db:
        tokens, grid = expdb.Field("int32", (None,)), expdb.Field("float32", (None, 3))
        _every_type(db.buffer("types", fields={"tokens": tokens, "grid": grid}), rng)
        _evicted(db.buffer("evicted", capacity=64), rng)
        _agents(db.buffer("agents"))
        db.buffer("empty", capacity=10)
        _consumed(db.buffer("consumed"), rng)
        _versioned(db.buffer("versioned"))
        _tokens(db.buffer("tokens", fields=expdb.TOKEN_FIELDS), rng)
        _scored(db.buffer("scored"))
        _measured(db.buffer("measured"))
        _imported(db.buffer("imported"))
        _related(db.buffer("related"))
        _shared(db.buffer("shared", fields={"ids": expdb.Field("int32", (None,))}), rng)
    with expdb.open(location, run="second run") as db:
        db.buffer("agents").store(
            task_id="again", episode_id="never ended", late_field=2.5, pre_agent="planner"
        )


def _every_type(buffer: expdb.ReplayBuffer, rng: np.random.Generator) -> None:
    numbers = {
        name: np.frombuffer(rng.bytes(64 * 8), name if name != "bool" else "uint8")[:24]
        for name in DTYPES
    }  # random bits: subnormal numbers, NaN with a payload, very small and large numbers
    numbers["bool"] = numbers["bool"] % 2 == 1
    tags = {"source": "kept", "level": 3}
    with buffer.episode("types", episode_id="values", episode_tags=tags) as episode:
        for k in range(12):
            episode.append(
                **{f"scalar_{name}": array[k] for name, array in numbers.items()},
                **{f"tensor_{name}": of[k : k + 6].reshape(2, 3) for name, of in numbers.items()},
                tokens=np.arange(k, dtype=np.int32), grid=np.full((k % 3, 3), k, np.float32),
                ints=list(range(k)), floats=[k / 3] * (k % 4 + 1),
                text=f"step {k}: \u00e9\u4e16\U0001f30d 'quoted'\n" * (k + 1), raw=bytes(range(k)),
                empty_text="", flag=k % 2 == 0, number=k, real=-0.0,
                obs={"image": rng.integers(0, 8, (16, 16, 3), np.uint8), "speed": np.float32(k)},
                nested={"a": [1, None, {"b": True, "c": 1.5e-300}], "k": k}, nothing=None,
                reward=float(k) if k % 3 else None,
                tags={"k": k, "even": k % 2 == 0, "name": f"n{k}", "none": None},
            )  # fmt: skip
            if k == 5:
                episode.flush()
        episode.end(obs={"image": np.zeros((16, 16, 3), np.uint8), "speed": np.float32(99)})


def _evicted(buffer: expdb.ReplayBuffer, rng: np.random.Generator) -> None:
    for number in range(12):
        names = {"task_name": f"name {number % 2}", "episode_id": f"e{number}"}
        with buffer.episode(f"task {number % 3}", **names, policy_version=number) as episode:
            for t in range(10):
                values = {"obs": rng.standard_normal(4), "action": t % 3, "reward": rng.normal()}
                is_last = number % 2 == 1 and t == 9
                episode.append(**values, execute_time=1e9 + t, terminated=is_last)
            if number % 2 == 0:
                episode.end(obs=np.full(4, number, np.float64))
    positions = np.concatenate([batch["position"] for batch in buffer.scan()])
    size = len(positions[::2])
    priorities = rng.random(size) * 10.0 ** rng.integers(-300, 300, size)
    buffer.update_priorities(positions[::2], priorities)
    buffer.delete(positions[20:23])
    buffer.delete({"episode_id": "e8", "step": 4})
    buffer.update({"episode_id": "e10"}, policy_version=1000)
    buffer.index("agent_id")
    buffer.capacity = 56


def _agents(buffer: expdb.ReplayBuffer) -> None:
    for attempt in range(4):
        messages: list[dict[str, Any]] = []
        names = {"agent_id": f"agent {attempt % 2}", "episode_id": f"attempt {attempt}"}
        with buffer.episode("book flight", group_id="group 1", **names) as episode:
            for turn in range(5):
                messages.append({"role": "user", "content": f"turn {turn} of attempt {attempt}"})
                action = {"tool": "search", "arguments": {"turn": turn}}
                episode.append(messages=list(messages), action=action)
                calls = {"tool_calls": [{"id": turn}]}
                messages.append({"role": "assistant", "content": "looking", **calls})
        last = {"episode_id": f"attempt {attempt}", "step": 4}
        buffer.update(last, reward=attempt / 2, tags={"judge": "late"})
    broken = buffer.episode("book flight", group_id="group 1", episode_id="broken")
    broken.append(messages=[{"role": "user", "content": "?"}], action={})
    broken.abort()
    for step in (3, 1, 2):
        buffer.store(task_id="shuffled", episode_id="out of order", step=step, score=step)
    buffer.end_episode("out of order", "aborted")
    names = {"task_id": "again", "episode_id": "never ended"}
    buffer.store(**names, late_field=1.5, episode_tags={"open": True})
    rows = [{"task_id": f"b{k}", "episode_id": f"single {k}", "reward": k} for k in range(3)]
    buffer.store_batch([{**row, "truncated": True} for row in rows])
    buffer.index("tags.judge")
    buffer.index("episode_tags.open")


def _consumed(buffer: expdb.ReplayBuffer, rng: np.random.Generator) -> None:
    for number in range(6):
        names = {"group_id": f"group {number % 3}", "episode_id": f"consumed {number}"}
        with buffer.episode(f"task {number % 2}", **names) as episode:
            for step in range(5):
                episode.append(obs=rng.standard_normal(2), reward=float(number + step))
    trainer = buffer.consumer("trainer", max_times_sampled=3, min_size=4, seed=11)
    units = expdb.Step(), expdb.NStep((1, 2), gamma=0.5), expdb.Episode(), expdb.Group(2)
    for step, unit in enumerate(units):
        with trainer.lease(2, unit=unit, trainer_step=step):
            pass
    with trainer.lease(4, {"task_id": "task 1"}, sampler=expdb.Prioritized(), fields=["obs"]):
        pass
    trainer.lease(3).release()
    buffer.consumer("evaluation", new_only=True)


def _versioned(buffer: expdb.ReplayBuffer) -> None:
    with buffer.episode("in flight", policy_version=3, episode_id="in flight") as episode:
        for step in range(6):
            version = 3 + step // 2
            end = version + step % 2
            episode.append(text="x" * step, policy_version=version, policy_version_end=end)
    for version in (None, 7, 6):
        buffer.store(task_id="told late", episode_id="told late", policy_version=version)


def _tokens(buffer: expdb.ReplayBuffer, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 150_000, 60).astype(np.int32)
    with buffer.episode("chat", episode_id="turns") as episode:
        for turn in range(8):
            output = rng.integers(0, 150_000, 10 + turn).astype(np.int32)
            episode.append(
                prompt_ids=prompt, output_ids=output, output_mask=output % 2 == 0,
                logprobs=None if turn == 3 else -rng.random(len(output), np.float32),
                versions=np.sort(rng.integers(0, 3, len(output))).astype(np.int32),
            )  # fmt: skip
            if turn % 3 == 0:
                episode.append(reward=1.0)  # a step without tokens
                episode.flush()
            prompt = np.concatenate([prompt, output])


def _scored(buffer: expdb.ReplayBuffer) -> None:
    for number in range(4):
        with buffer.episode("prompt", group_id="g", episode_id=f"scored {number}") as episode:
            for step in range(3):
                episode.append(x=step, reward=1.0)
    buffer.score(episode_id="scored 0", name="judge", value=1 / 3, by="v1", detail={"\u00e9": [1]})
    buffer.score(episode_id="scored 0", name="judge", value=2 / 3, by="v2")
    buffer.score(episode_id="scored 1", name="judge", value=None, status="timeout")
    buffer.score([6, 7], name="format", value=[True, -1e300])
    with buffer.episode("chess", agent_id="white", episode_id="self-play") as episode:
        for step in range(4):
            episode.append(x=step, agent_id=["white", "black"][step % 2], policy_version=step)
    buffer.policy_versions["black"] = 3
    lengths = [np.arange(k, dtype=np.float32) / 3 for k in range(5)]
    buffer.annotate(range(5), advantages=lengths)
    buffer.annotate([3, 9], version=4, advantages=lengths[1:3], weights=[0.5, 1 / 3])


def _shared(buffer: expdb.ReplayBuffer, rng: np.random.Generator) -> None:
    picture, ids = rng.bytes(3000), rng.integers(0, 1000, 600).astype(np.int32)
    for number in range(3):
        with buffer.episode("shared", episode_id=f"rollout {number}", group_id="g") as episode:
            content = f"system prompt {'.' * 2000}"
            messages = [{"role": "system", "content": content}, {"role": "user", "content": "a"}]
            episode.append(messages=messages, picture=picture, ids=ids, text="t" * 1500)
            episode.append(messages=messages, picture=picture, ids=[*ids, number])


def _related(buffer: expdb.ReplayBuffer) -> None:
    buffer.policy_versions.add_label("step-2", 2)
    with buffer.episode("tree", episode_id="root", policy_version=1) as root:
        for step in range(6):
            root.append(x=step, reward=1.0)
    with buffer.fork("root", at_step=4, episode_id="fork", policy_version=2) as fork:
        fork.append(x=40, reward=2.0)
        fork.append(x=41)
    with buffer.fork("fork", at_step=2, episode_id="retry", relation="retry") as retry:
        retry.append(x=20)
    for relation in ("subagent", "continuation", "compaction"):
        buffer.store(
            task_id="helper", episode_id=relation, parent="fork", parent_step=5,
            relation=relation, x=1, terminated=True,
        )  # fmt: skip
    lease = buffer.consumer("branches", seed=0).lease(3, unit=expdb.Episode(lineage=True))
    lease.acknowledge()


def read(db: expdb.ExperienceDB) -> dict[str, Any]:
    """Return the contents of a database as plain JSON values."""
    contents: dict[str, Any] = {}
    for name in db.buffers():
        buffer = db.buffer(name)
        stats = buffer.stats()
        following: dict[str, Any] = {}
        fields = [field for field in ("obs", "obs.image", "obs.speed") if field in stats["fields"]]
        if fields:
            batch = buffer.sample(4096, unit=expdb.NStep(1, next_fields=tuple(fields)), seed=0)
            keys = ["discount", *[f"next_{field}" for field in fields]]
            rows = sorted(batch.to_list(), key=lambda row: row["position"])
            following = {str(row["position"]): _plain([row], keys)[0] for row in rows}
        annotated = ["position", *stats["annotations"]] if stats["annotations"] else ()
        contents[name] = {
            "stats": {key: stats[key] for key in STATS},
            "steps": _scanned(buffer, [*COLUMNS, *stats["fields"], "position"]),
            "episodes": _plain(buffer.episodes().to_pylist()),
            "annotations": _scanned(buffer, annotated) if annotated else [],
            "scores": _plain(buffer.scores().to_pylist()),
            "following": following,
        }
        if name == "measured":  # the other buffers have the metrics of this process
            contents[name]["metrics"] = _plain(buffer.metrics().to_pylist())
            contents[name]["workers"] = _plain(workers_of(buffer))
        for consumer in buffer.consumers():
            contents[name][f"consumer {consumer}"] = [
                {key: _json(array) for key, array in batch.items() if array.dtype != object}
                for batch in buffer.replay(consumer)
            ]
    return contents


def _scanned(buffer: expdb.ReplayBuffer, fields: Any) -> list[dict[str, Any]]:
    return _plain(row for batch in buffer.scan(fields=fields, size=7) for row in batch.to_list())


def _plain(rows: Any, keys: Any = None) -> list[dict[str, Any]]:
    return [{key: _json(row[key]) for key in keys or row} for row in rows]


def _imported(buffer: expdb.ReplayBuffer) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    records = [{"id": f"record {k}", "messages": messages, "reward": k} for k in range(3)]
    report = formats.import_rollouts(buffer, formats.read(records))
    assert report.episodes == 3


def _measured(buffer: expdb.ReplayBuffer) -> None:
    buffer.store(task_id="t", episode_id="measured", number=1)
    store = buffer._store
    with store.writing() as (session, _):
        for id, added in enumerate((10, 30)):
            session.query(
                "INSERT INTO metrics VALUES (?, ?, ?, ?) RETURNING id",
                store.id, id, 1e9 + 10 * id, json.dumps({"steps_added": added, "actors": 1}),
            )  # fmt: skip
        session.query(
            "INSERT INTO workers VALUES (?, 7, 'host 12 34 0', 'run', 'actor', 1e9, 1e9, 1e9, ?, ?)"
            " RETURNING id",
            store.id, '{"steps": 30}', '{"steps": 1.5}',
        )  # fmt: skip


def _json(value: Any) -> Any:
    """Return a value as JSON without loss of bits, or as a digest if it is long."""
    if isinstance(value, np.ndarray):
        data = value.tobytes()
        return {
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "bytes": data.hex() if len(data) <= 64 else hashlib.sha256(data).hexdigest(),
        }
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float):
        return value.hex()
    return value


def without_times(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the contents without times, so that two databases can be compared."""
    times = "execute_time", "started", "ended", "scored"
    return json.loads(
        json.dumps(contents),
        object_hook=lambda mapping: {k: v for k, v in mapping.items() if k not in times},
    )


def main() -> None:
    """Write the files of this version."""
    sys.path.insert(0, str(Path(__file__).parent))
    from postgres_server import Server

    from expdb.sql.schema import list_revisions

    revision = list_revisions()[-1]
    path = DATA / f"{revision}.db"
    path.unlink(missing_ok=True)
    write(str(path))
    with expdb.open(path, create=False) as db:
        values = read(db)
        assert db.check() == []
    server = Server()
    name = server.database()
    write(server.url(name))
    with expdb.open(server.url(name), create=False) as db:
        theirs = read(db)
        assert without_times(theirs) == without_times(values), "the databases differ"
    options = "--inserts", "--no-owner", "--no-privileges", "--schema=expdb"
    command = [server.bin / "pg_dump", *options, server.url(name)]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    server.remove()
    unwanted = r"(?m)^(\\.*|SET (transaction_timeout|default_table_access_method).*)\n"
    (DATA / f"{revision}.sql").write_text(re.sub(unwanted, "", dumped))
    text = json.dumps({"sqlite": values, "postgresql": theirs}, ensure_ascii=False, indent=0)
    (DATA / f"{revision}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
