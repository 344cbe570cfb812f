"""Values that several chunks contain are stored once, and every reader restores them."""

import os
import sqlite3
import threading
import zlib

import numpy as np
import pytest

import expdb
from expdb import errors
from expdb.chunks.shared_values import ValuePointer, check_pointers, digest_of
from expdb.storage import recent_values
from expdb.storage.reading import fetch

PROMPT = "You are a helpful assistant. " * 100
OTHER = "Book the cheapest flight to Zurich. " * 100
FIELDS = {"prompt": expdb.Field("text"), "messages": expdb.Field("json"), **expdb.TOKEN_FIELDS}


def store_rollouts(buffer, count, prompt=PROMPT, group_id="g", prefix="r"):
    """Store rollouts of two steps; the first step contains the prompt."""
    for number in range(count):
        with buffer.episode("t", episode_id=f"{prefix}{number}", group_id=group_id) as episode:
            episode.append(prompt=prompt, reward=0.0)
            episode.append(prompt=f"turn {number}", reward=1.0)


def count_shared_values(buffer):
    """Return the number of shared values and of references."""
    with buffer._store.engine.reading() as session:
        return tuple(
            session.query(f"SELECT count(*) FROM {table} WHERE buffer_id = ?", buffer._store.id)[0][
                0
            ]
            for table in ("shared_values", "value_references")
        )


@pytest.mark.both_databases
def test_rollouts_of_a_group_store_their_prompt_once(db):
    buffer = db.buffer("train", fields=FIELDS)
    store_rollouts(buffer, 4)
    assert count_shared_values(buffer) == (1, 4)
    expected = [PROMPT, "turn 0", PROMPT, "turn 1", PROMPT, "turn 2", PROMPT, "turn 3"]
    assert buffer.get(range(8))["prompt"].tolist() == expected
    assert [p for batch in buffer.scan(size=3) for p in batch["prompt"]] == expected
    batch = buffer.sample(4, unit=expdb.Episode(), sampler=expdb.Ordered("position"))
    assert batch["prompt"][:, 0].tolist() == [PROMPT] * 4
    lengths = db.sql(
        "SELECT length(field(payload, 'prompt')) AS n FROM experience ORDER BY position"
    )
    assert lengths["n"].to_pylist()[:2] == [len(PROMPT), 6]
    assert db.check() == []


@pytest.mark.both_databases
def test_deleting_the_last_reference_deletes_the_value(db):
    buffer = db.buffer("train", fields=FIELDS)
    store_rollouts(buffer, 2)
    store_rollouts(buffer, 2, OTHER, "h", "s")
    assert count_shared_values(buffer) == (2, 4)
    buffer.delete({"episode_id": "r0"})
    assert count_shared_values(buffer) == (2, 3)
    buffer.delete({"episode_id": "r1"})
    assert count_shared_values(buffer) == (1, 2)
    buffer.capacity = 2
    store_rollouts(buffer, 1, "short", None, "t")
    assert count_shared_values(buffer) == (0, 0)
    assert db.check() == []


def test_buffers_do_not_share_values(open_db):
    db = open_db()
    first, second = db.buffer("a", fields=FIELDS), db.buffer("b", fields=FIELDS)
    store_rollouts(first, 2)
    store_rollouts(second, 2)
    db.drop("a")
    assert count_shared_values(second) == (1, 2)
    assert second.get([0])["prompt"][0] == PROMPT
    assert db.check() == []


def test_repeated_values_are_recognized_in_each_kind_of_field(new_buffer):
    picture = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
    ragged = np.random.default_rng(1).integers(0, 255, (40, 30, 3), np.uint8)
    buffer = new_buffer(
        fields={
            **FIELDS,
            "file": expdb.Field("bytes"),
            "patches": expdb.Field("uint8", (None, None, 3)),
        }
    )
    values = {
        "prompt": PROMPT, "messages": [{"content": PROMPT}, {"content": "short"}],
        "file": os.urandom(3000), "picture": picture, "patches": ragged,
        "prompt_ids": list(range(1000)), "output_ids": [1],
    }  # fmt: skip
    for number in range(3):
        buffer.store(task_id="t", episode_id=f"{number}", **values, n=number)
    assert count_shared_values(buffer) == (6, 12)  # the first chunk contains its values
    for number in range(3):
        (row,) = buffer.get([number]).to_list()
        assert row["prompt"] == PROMPT
        assert row["file"] == values["file"]
        assert row["messages"] == values["messages"]
        assert np.array_equal(row["picture"], picture)
        assert np.array_equal(row["patches"], ragged)
        assert row["prompt_ids"].tolist() == values["prompt_ids"]


def test_prompts_share_the_parts_of_a_common_beginning(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    system = np.random.default_rng(2).integers(0, 50_000, 3000).astype(np.int32)
    prompts = [np.append(system, np.arange(number, 700, dtype=np.int32)) for number in range(4)]
    for number, prompt in enumerate(prompts):
        with buffer.episode("t", group_id=f"{number // 2}") as episode:
            episode.append(prompt_ids=prompt, output_ids=[1])
            episode.append(prompt_ids=[*prompt, 1, 2], output_ids=[3])
    # Two parts of 4,096 bytes are equal; each prompt has another third and fourth part.
    assert count_shared_values(buffer) == (2 + 4 + 4, 4 * 4)
    stored = buffer.get(range(8))["prompt_ids"]
    for number, prompt in enumerate(prompts):
        assert np.array_equal(stored[2 * number], prompt)
        assert np.array_equal(stored[2 * number + 1], [*prompt, 1, 2])


def test_values_that_occur_once_are_not_shared(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    for number in range(5):
        buffer.store(task_id="t", episode_id=f"{number}", prompt=f"{number}" * 5000)
    assert count_shared_values(buffer) == (0, 0)


def test_declared_fields_share_every_large_value_or_none(new_buffer):
    fields = {"a": expdb.Field("text", shared=True), "b": expdb.Field("text", shared=False)}
    buffer = new_buffer(fields=fields)
    for number in range(2):
        with buffer.episode("t") as episode:
            for _ in range(2):  # the end of the episode merges the chunks
                episode.append(a=f"{number}" * 5000, b=PROMPT)
                episode.flush()
    assert count_shared_values(buffer) == (2, 2)
    assert expdb.Field.from_json(fields["a"].as_json()).shared is True
    with pytest.raises(errors.InvalidValue, match="shared must be True, False or None"):
        expdb.Field("text", shared="yes")


def test_merged_chunks_keep_their_shared_values(open_db):
    db = open_db()
    buffer = db.buffer("train", fields=FIELDS)
    store_rollouts(buffer, 2)
    other = open_db().buffer("train")
    for number in range(2):
        with other.episode("t", episode_id=f"s{number}", group_id="g") as episode:
            episode.append(prompt=PROMPT, reward=0.0)
            episode.flush()
            episode.append(prompt="end", reward=1.0)
    assert count_shared_values(buffer) == (1, 4)
    assert other.get(other.steps_of("s1"))["prompt"].tolist() == [PROMPT, "end"]
    assert db.check() == []


def test_messages_repeated_within_an_episode_are_not_shared(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    with buffer.episode("t") as episode:
        for turn in range(3):
            episode.append(messages=[{"content": PROMPT}, {"content": f"turn {turn}"}])
            episode.flush()
    assert count_shared_values(buffer) == (0, 0)


def test_errors_name_missing_and_corrupted_values(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        store_rollouts(db.buffer("train", fields=FIELDS), 2)
    with sqlite3.connect(path) as connection:
        ((digest,),) = connection.execute("SELECT digest FROM shared_values")
        connection.execute("UPDATE shared_values SET crc = crc + 1")
    connection.close()
    with expdb.open(path) as db:
        message = f"shared value {digest.hex()} of chunk 1 is corrupted"
        with pytest.raises(errors.ChunkDamaged, match=message):
            db.buffer("train").get([0])
        assert message in str(db.check())
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM shared_values")
    connection.close()
    with expdb.open(path) as db, pytest.raises(errors.ChunkDamaged, match="is missing"):
        db.buffer("train").get([0])


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "INSERT INTO value_references SELECT buffer_id, 3, digest FROM value_references "
            "WHERE chunk = 5",
            "does not match the shared values of chunk 3",
        ),
        (
            "DELETE FROM value_references WHERE chunk = 1",
            "does not match the shared values of chunk 1",
        ),
        ("UPDATE value_references SET chunk = 7 WHERE chunk = 1", "without a chunk"),
        ("DELETE FROM value_references", "2 shared values without a reference"),
    ],
)
def test_check_reports_inconsistent_references(tmp_path, statement, problem):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        buffer = db.buffer("train", fields=FIELDS)
        store_rollouts(buffer, 2)
        store_rollouts(buffer, 1, OTHER, "h", "s")
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    with expdb.open(path) as db:
        assert problem in str(db.check())


@pytest.mark.both_databases
def test_copy_copies_shared_values(db, tmp_path, monkeypatch):
    monkeypatch.setattr("expdb.storage.upkeep.copying.BATCH_CHUNKS", 2)
    store_rollouts(db.buffer("train", fields=FIELDS), 5)
    expdb.copy(db.location, tmp_path / "copy.db")
    with expdb.open(tmp_path / "copy.db") as other:
        buffer = other.buffer("train")
        assert count_shared_values(buffer) == (1, 5)
        assert buffer.get([8])["prompt"][0] == PROMPT
        assert other.check() == []


def test_exports_contain_shared_values(tmp_path):
    from pyarrow import parquet

    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("train", fields=FIELDS)
        store_rollouts(buffer, 2)
        expdb.export.export(buffer, tmp_path / "steps.parquet")
    table = parquet.read_table(tmp_path / "steps.parquet")
    assert table["prompt"].to_pylist() == [PROMPT, "turn 0", PROMPT, "turn 1"]


def test_a_deleted_value_leaves_no_bytes_in_the_file(tmp_path):
    path = tmp_path / "runs.db"
    marker = os.urandom(16).hex() * 64
    with expdb.open(path) as db:
        buffer = db.buffer("train", fields=FIELDS)
        store_rollouts(buffer, 2, marker)
        store_rollouts(buffer, 2, OTHER, "h", "s")
        buffer.delete({"group_id": "g"})
        db.vacuum()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert marker[:32].encode() not in stored
    with expdb.open(path) as db:
        assert count_shared_values(db.buffer("train")) == (1, 2)


def test_writers_of_two_handles_can_store_the_same_new_value(open_db):
    first, second = (open_db().buffer("train", fields=FIELDS) for _ in range(2))
    with first.episode("t", group_id="g") as one, second.episode("t", group_id="g") as two:
        one.append(prompt=PROMPT)
        two.append(prompt=PROMPT)
    assert count_shared_values(first) == (1, 2)


def test_only_recent_values_are_recognized(monkeypatch):
    monkeypatch.setattr(recent_values, "MAX_RECENT_VALUES", 2)
    values = recent_values.RecentValues()
    assert values.add([1, 2, 3, 1, 2], "a", count_same_episode=True) == [1, 2]
    assert [values.add([value], "a", count_same_episode=True) for value in (4, 5, 6, 7, 1)] == [
        []
    ] * 5
    assert values.add([1], "a", count_same_episode=False) == []
    assert values.add([1], "b", count_same_episode=False) == [1]
    assert values.is_repeated(1)
    assert not values.is_repeated(7)


@pytest.mark.both_databases
def test_the_bytes_of_a_buffer_include_shared_values(db):
    buffer = db.buffer("train", fields=FIELDS)
    prompts = [os.urandom(20_000).hex() for _ in range(5)]
    for number, prompt in enumerate(prompts):
        store_rollouts(buffer, 3, prompt, f"g{number}", f"{number}-")
    assert 100_000 < buffer.stats()["bytes"] < 130_000
    buffer.eviction = expdb.Eviction(max_bytes=75_000)
    buffer.evict()
    assert count_shared_values(buffer) == (3, 9)  # the oldest two groups are evicted
    assert 60_000 < buffer.stats()["bytes"] <= 75_000
    assert db.check() == []


def test_small_elements_of_a_list_are_shared_together(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    tools = [{"name": f"tool {number}", "description": "d" * 500} for number in range(5)]
    for number in range(3):
        messages = [*tools, {"content": PROMPT}, {"content": f"question {number}"}]
        buffer.store(task_id="t", episode_id=f"{number}", messages=messages)
    assert count_shared_values(buffer) == (2, 4)
    assert buffer.get([2])["messages"][0] == messages


def test_sharing_can_be_declared_later_but_not_changed(open_db):
    db = open_db()
    buffer = db.buffer("train", fields={"ids": expdb.Field("int32", (None,)), "text": "text"})
    buffer.store(ids=[1], text="a")
    buffer = db.buffer("train", fields={"text": expdb.Field("text", shared=True)})
    for number in range(2):
        buffer.store(task_id="t", episode_id=f"{number}", text=PROMPT)
    assert count_shared_values(buffer) == (1, 2)
    with pytest.raises(errors.FieldMismatch, match="shared=True, but fields= declares False"):
        db.buffer("train", fields={"text": expdb.Field("text", shared=False)})


@pytest.mark.parametrize("value", ["yes", 1, 0, 1.0, np.array([True])])
def test_shared_must_be_a_bool(value):
    with pytest.raises(errors.InvalidValue, match="shared must be True, False or None"):
        expdb.Field("text", shared=value)


@pytest.mark.parametrize(
    ("dtype", "shape", "options"),
    [("int64", (), {}), ("float32", (3,), {}), ("int32", (None,), {"ascending": True})],
)
def test_fields_without_large_values_cannot_be_shared(dtype, shape, options):
    with pytest.raises(errors.InvalidValue, match="cannot be shared"):
        expdb.Field(dtype, shape, shared=True, **options)


def test_a_value_that_cannot_be_decompressed_raises_and_is_reported(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        store_rollouts(db.buffer("train", fields=FIELDS), 2)
    with sqlite3.connect(path) as connection:
        ((digest, data),) = connection.execute("SELECT digest, data FROM shared_values")
        crc = zlib.crc32(data[:20], zlib.crc32(digest))
        connection.execute("UPDATE shared_values SET data = ?, crc = ?", (data[:20], crc))
    connection.close()
    message = f"shared value {digest.hex()} of chunk 1 cannot be read"
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        for call in (lambda: buffer.get([0]), lambda: buffer.delete([0])):
            with pytest.raises(errors.ChunkDamaged, match=message):
                call()
        assert message in str(db.check())


@pytest.mark.parametrize(
    ("other", "problem"),
    [(PROMPT.upper(), "does not match its digest"), (OTHER, "its length differs from the pointer")],
)
def test_another_value_under_a_digest_is_reported(tmp_path, other, problem):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        for prompt in (PROMPT, other):
            store_rollouts(db.buffer("train", fields=FIELDS), 1, prompt, prompt, prompt[:9])
    digest, of_other = (digest_of(prompt.encode()) for prompt in (PROMPT, other))
    with sqlite3.connect(path) as connection:
        select = "SELECT data FROM shared_values WHERE digest = ?"
        ((data,),) = connection.execute(select, (of_other,))
        changed = data, zlib.crc32(data, zlib.crc32(digest)), digest
        connection.execute("UPDATE shared_values SET data = ?, crc = ? WHERE digest = ?", changed)
    connection.close()
    with expdb.open(path) as db:
        assert problem in str(db.check())


def test_the_first_steps_of_a_batch_share_their_large_messages(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    lists = [[{"a": "small"}, {"content": PROMPT}, {"a": "tail"}], [{"content": OTHER}]]
    buffer.store_batch(
        [
            {"task_id": "t", "episode_id": f"{k}", "group_id": f"{k}", "messages": messages}
            for k, messages in enumerate(lists)
        ]
    )
    assert count_shared_values(buffer) == (2, 2)
    assert buffer.get([0, 1])["messages"].tolist() == lists


@pytest.mark.parametrize(
    "pointers",
    [
        [(0, 5, 0), (4, 5, 1)], [(-1, 5, 0)], [(0, -1, 0)], [(11, 5, 0)], [(0, 5, 0), (5, 6, 0)],
        [(0, 1 << 30, 0), (1 << 30, 1, 1)], [(1 << 40, 5, 0)],
    ],
)  # fmt: skip
def test_invalid_pointers_are_damage(pointers):
    pointers = [ValuePointer(at, length, bytes([n])) for at, length, n in pointers]
    with pytest.raises(errors.ChunkDamaged, match="shared values"):
        check_pointers(pointers, rest_bytes=10, max_bytes=1 << 30)


def test_full_chunks_with_shared_values_are_not_merged(new_buffer):
    buffer = new_buffer(fields={"file": expdb.Field("bytes", shared=True)})
    files = [os.urandom(600_000) for _ in range(3)]
    with buffer.episode("t") as episode:
        for file in files:
            episode.append(file=file)
            episode.flush()
    assert buffer.stats()["chunks"] == 3
    assert buffer.get(range(3))["file"].tolist() == files


def test_only_the_first_step_of_a_rollout_shares_new_values(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    texts = [os.urandom(2000).hex() for _ in range(4)]
    with buffer.episode("t", group_id="g") as episode:
        for number, text in enumerate(texts):
            episode.append(prompt=text)
            if number == 1:
                episode.flush()
    assert count_shared_values(buffer) == (1, 1)


def test_values_that_occur_twice_in_a_chunk_are_shared(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    buffer.store_batch([{"task_id": "t", "prompt": PROMPT}, {"task_id": "t", "prompt": PROMPT}])
    assert count_shared_values(buffer) == (1, 1)
    assert buffer.get([0, 1])["prompt"].tolist() == [PROMPT, PROMPT]


def test_merging_an_episode_shares_values_that_were_repeated_since(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    with buffer.episode("t") as first:
        first.append(prompt=PROMPT)
        first.flush()
        first.append(prompt="end")
        first.flush()
        buffer.store(task_id="t", episode_id="other", prompt=PROMPT)
        assert count_shared_values(buffer) == (1, 1)
    assert count_shared_values(buffer) == (1, 2)


def test_other_handles_do_not_share_values_of_fields_declared_as_not_shared(open_db):
    buffer = open_db().buffer("train", fields={"text": expdb.Field("text", shared=False)})
    for _ in range(2):
        buffer.store(task_id="t", episode_id="e", text=PROMPT)
    other = open_db().buffer("train")
    other.end_episode("e")
    assert other.stats()["chunks"] == 1
    assert count_shared_values(other) == (0, 0)


def test_a_merge_shares_values_that_several_handles_wrote(open_db):
    for step in range(2):
        open_db().buffer("train").store(task_id="t", episode_id="e", step=step, text=PROMPT)
    buffer = open_db().buffer("train")
    assert count_shared_values(buffer) == (0, 0)
    buffer.end_episode("e")
    assert count_shared_values(buffer) == (1, 1)


@pytest.mark.parametrize("count", [3, 300])
def test_every_handle_samples_shared_arrays(open_db, count):
    shared = expdb.Field("uint8", (50, 40), shared=True)
    buffer = open_db().buffer("train", fields={"obs": shared})
    follower = open_db().buffer("train")
    arrays = np.random.default_rng(3).integers(0, 255, (count, 50, 40), np.uint8)
    buffer.store(task_id="t", obs=arrays[0], reward=0.0, terminated=True)
    for handle in (buffer, follower):
        handle.sample(1)
        handle.sample(1)  # loads the steps into memory
    with buffer.episode("t") as episode:
        for array in arrays[1:]:
            episode.append(obs=array, reward=0.0)
    for handle in (buffer, follower, open_db().buffer("train")):
        batch = handle.sample(count)
        assert np.array_equal(batch["obs"], arrays[batch["position"]])
    assert count_shared_values(buffer) == (count, count)


def test_a_repeated_step_with_a_shared_value_is_recognized(new_buffer):
    buffer = new_buffer(fields=FIELDS)
    step = {"task_id": "t", "episode_id": "e", "step": 0, "group_id": "g", "prompt": PROMPT}
    assert [buffer.store(**step) for _ in range(2)] == [0, 0]
    assert count_shared_values(buffer) == (1, 1)


@pytest.mark.both_databases
def test_values_are_read_from_the_snapshot_of_their_chunks(db, monkeypatch):
    buffer = db.buffer("train", fields=FIELDS)
    store_rollouts(buffer, 1)
    with expdb.open(db.location) as other_db:
        other = other_db.buffer("train")
        read = fetch.read_shared_values

        def delete_and_read(*arguments):
            monkeypatch.setattr(fetch, "read_shared_values", read)
            thread = threading.Thread(target=other.clear)
            thread.start()
            thread.join()
            read(*arguments)

        monkeypatch.setattr(fetch, "read_shared_values", delete_and_read)
        batch = buffer.sample(1, sampler=expdb.Ordered("position"), fields=["prompt"])
        assert batch["prompt"][0] in (PROMPT, "turn 0")
        assert len(other) == 0
