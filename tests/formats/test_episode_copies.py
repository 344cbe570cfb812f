"""Chosen and changed steps are copied with everything that belongs to them."""

import kept_files
import numpy as np
import pytest
from test_parquet_exports import contents  # the views without numbers

import expdb
from expdb import errors


def fill(location, name="train", run="first", count=4):
    with expdb.open(location, run=run) as db:
        buffer = db.buffer(name)
        for number in range(count):
            with buffer.episode(
                f"t{number % 2}", episode_id=f"e{number}", group_id=f"g{number // 2}"
            ) as episode:
                for step in range(3):
                    episode.append(
                        obs=np.full(2, step, np.float32), reward=1.0, note={"secret": f"s{step}"}
                    )
                episode.end(obs=np.zeros(2, np.float32), note={"secret": "last"})
            buffer.score(episode_id=f"e{number}", name="judge", value=number / 3, by="v1")


def read(location, name="train"):
    with expdb.open(location) as db:
        assert db.check() == []
        return contents(db.buffer(name, create=False))


@pytest.mark.filterwarnings("ignore::expdb.ExpDBWarning")
def test_copied_episodes_have_every_value(tmp_path, postgresql_url):
    kept_files.write(tmp_path / "a.db")
    for target in (tmp_path / "b.db", postgresql_url):
        expdb.copy(tmp_path / "a.db", target, on_conflict="error")
        with expdb.open(tmp_path / "a.db") as first, expdb.open(target) as second:
            for name in first.buffers():
                expected, found = contents(first.buffer(name)), contents(second.buffer(name))
                for part in expected:
                    for row, other in zip(expected[part], found[part], strict=True):
                        assert row == other, (name, part)
            versions = "SELECT name, version, count(*) AS n FROM annotations GROUP BY 1, 2"
            for db in (first, second):
                with db.buffer("scored")._store.engine.reading() as session:
                    assert sorted(map(tuple, session.query(versions))) == [
                        ("advantages", -1, 5), ("advantages", 4, 2), ("weights", 4, 2),
                    ]  # fmt: skip


def test_a_buffer_is_copied_under_another_name(tmp_path):
    path = tmp_path / "a.db"
    fill(path)
    assert expdb.copy(path, path, buffer="train", name="copy") == {"train": 12}
    assert read(path, "copy") == read(path)
    with pytest.raises(errors.TargetExists, match="already has a buffer 'copy'"):
        expdb.copy(path, path, buffer="train", name="copy")
    with pytest.raises(expdb.InvalidValue, match="are the same database"):
        expdb.copy(path, path, buffer="train", name="train")
    with pytest.raises(expdb.InvalidValue, match="name= requires buffer="):
        expdb.copy(path, tmp_path / "b.db", name="copy")


def test_a_subset_keeps_the_length_of_cut_episodes(tmp_path):
    fill(tmp_path / "a.db")
    assert expdb.copy(tmp_path / "a.db", tmp_path / "b.db", where="step >= 1 and task_id = t0") == {
        "train": 4
    }
    with expdb.open(tmp_path / "b.db") as db:
        rows = db.sql(
            "SELECT episode_id, length, steps_held, episode_return FROM experience_episodes"
        ).to_pylist()
        assert [tuple(row.values()) for row in rows] == [("e0", 3, 2, 3.0), ("e2", 3, 2, 3.0)]
        batch = next(db.buffer("train").scan(fields=["step", "next_obs", "scores"])).to_list()
        assert [row["step"] for row in batch] == [1, 2, 1, 2]
        assert batch[1]["next_obs"].tolist() == [0.0, 0.0]
        assert batch[0]["scores"] == {"judge": 0.0}
        assert db.check() == []


def test_a_function_changes_and_leaves_out_steps(tmp_path):
    fill(tmp_path / "a.db")

    def redact(values):
        if values.get("step") == 1:
            return None
        return {**values, "note": {"secret": "***"}}

    copied = expdb.copy(tmp_path / "a.db", tmp_path / "b.db", transform=redact)
    assert copied == {"train": 8}
    with expdb.open(tmp_path / "b.db") as db:
        fields = ["step", "note", "next_note", "episode_id", "status"]
        rows = next(db.buffer("train").scan(fields=fields)).to_list()
        assert [row["step"] for row in rows] == [0, 2] * 4
        assert {row["note"]["secret"] for row in rows} == {"***"}
        assert {str(row["next_note"]) for row in rows} == {"None", "{'secret': '***'}"}
        assert {row["status"] for row in rows} == {"complete"}


def test_a_function_that_returns_no_valid_step_stops_the_copy(tmp_path):
    fill(tmp_path / "a.db")
    with pytest.raises(expdb.InvalidValue, match=r"the copy stopped at episode 'e0': rows\[0\]"):
        expdb.copy(
            tmp_path / "a.db", tmp_path / "b.db", transform=lambda step: {**step, "reward": "x"}
        )
    with pytest.raises(expdb.InvalidValue, match="transform must be a function"):
        expdb.copy(tmp_path / "a.db", tmp_path / "c.db", transform="redact")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda values: values["missing"],
            "transform= raised KeyError .* for step 0 of episode 'e0'",
        ),
        (lambda values, other: values, "transform= raised TypeError"),
        (lambda values: "x", "must return a dict or None, got str for step 0 of episode 'e0'"),
        (lambda values: True, "must return a dict or None, got bool"),
    ],
)
def test_a_broken_function_creates_no_target(tmp_path, function, reason):
    fill(tmp_path / "a.db")
    with pytest.raises(expdb.InvalidValue, match=reason):
        expdb.copy(tmp_path / "a.db", tmp_path / "b.db", transform=function)
    with expdb.open(tmp_path / "b.db") as db:
        assert db.buffers() == []


def test_a_function_that_returns_nothing_causes_a_warning(tmp_path):
    fill(tmp_path / "a.db")
    with pytest.warns(expdb.ExpDBWarning, match="returned None for all of them"):
        assert expdb.copy(tmp_path / "a.db", tmp_path / "b.db", transform=lambda step: None) == {
            "train": 0
        }


def test_an_invalid_query_creates_no_target(tmp_path):
    fill(tmp_path / "a.db")
    with pytest.raises(expdb.QueryError, match="rewrd"):
        expdb.copy(tmp_path / "a.db", tmp_path / "b.db", where="rewrd > 0")
    assert not (tmp_path / "b.db").exists()


def test_a_changed_copy_continues_after_an_error(tmp_path, monkeypatch):
    from expdb.formats import episode_copies

    fill(tmp_path / "a.db", count=6)
    monkeypatch.setattr(episode_copies, "BATCH_ROLLOUTS", 2)
    seen = []

    def redact(values):
        seen.append(values)
        if len(seen) == 20:
            raise OSError
        return {**values, "note": {"secret": "***"}}

    arguments = tmp_path / "a.db", tmp_path / "b.db"
    with pytest.raises(expdb.InvalidValue, match="transform= raised OSError"):
        expdb.copy(*arguments, transform=redact)
    assert expdb.copy(*arguments, transform=redact) == {"train": 6}
    with pytest.raises(expdb.InvalidValue, match="which differs from its earlier copy"):
        expdb.copy(*arguments, transform=lambda values: values)
    with expdb.open(tmp_path / "b.db") as db:
        assert len(db.buffer("train")) == 18
        db.buffer("train").store(episode_id="mine", x=1)
    with pytest.raises(errors.TargetExists):
        expdb.copy(*arguments, transform=redact)


def test_tasks_without_groups_become_groups_of_their_source(tmp_path):
    for name in ("a", "b"):
        with expdb.open(tmp_path / f"{name}.db") as db:
            for number in range(2):
                db.buffer("train").store(
                    task_id="t", episode_id=f"{name}{number}", x=1, reward=1.0, terminated=True
                )
    expdb.copy(tmp_path / "b.db", tmp_path / "a.db", on_conflict="prefix")
    with expdb.open(tmp_path / "a.db") as db:
        batch = db.buffer("train").sample(2, unit=expdb.Group(2), fields=["episode_id"])
        assert sorted(sorted(group) for group in batch["episode_id"].tolist()) == [
            ["a0", "a1"], ["b/b0", "b/b1"],
        ]  # fmt: skip


def test_several_files_are_merged(tmp_path):
    fill(tmp_path / "a.db", run="first")
    fill(tmp_path / "b.db", run="second")
    target = tmp_path / "all.db"
    expdb.copy(tmp_path / "a.db", target)
    before = read(target)
    for conflict in ("error", "skip_equal"):
        with pytest.raises(errors.EpisodeMismatch, match="already has an episode 'e0'"):
            expdb.copy(tmp_path / "b.db", target, on_conflict=conflict)
    assert read(target) == before
    expdb.copy(tmp_path / "b.db", target, on_conflict="prefix")
    with expdb.open(target) as db:
        rows = db.buffer("train").episodes().to_pylist()
        assert [(row["episode_id"], row["group_id"], row["run"]) for row in rows[3:5]] == [
            ("e3", "g1", "first"), ("b/e0", "b/g0", "second"),
        ]  # fmt: skip
        assert db.check() == []


def test_the_capacity_of_an_existing_buffer_is_kept(tmp_path):
    fill(tmp_path / "a.db")
    with expdb.open(tmp_path / "b.db") as db:
        db.buffer("train", capacity=5)
    expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="error")
    with expdb.open(tmp_path / "b.db") as db:
        assert (db.buffer("train").capacity, len(db.buffer("train"))) == (5, 5)


def test_equal_episodes_are_skipped(tmp_path):
    fill(tmp_path / "a.db")
    expdb.copy(tmp_path / "a.db", tmp_path / "b.db", where="task_id = t1", on_conflict="error")
    copied = expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="skip_equal")
    assert copied == {"train": 6}
    found, expected = read(tmp_path / "b.db"), read(tmp_path / "a.db")
    assert found == expected


def test_deleted_episodes_are_copied_again_after_the_target_is_cleared(tmp_path):
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    fill(source)
    assert expdb.copy(source, target, on_conflict="skip_equal") == {"train": 12}
    with expdb.open(target) as db:
        db.buffer("train").delete("episode_id = 'e1'")
    assert expdb.copy(source, target, on_conflict="skip_equal") == {"train": 0}
    with expdb.open(target) as db:
        db.buffer("train").clear()
    assert expdb.copy(source, target, on_conflict="skip_equal") == {"train": 12}


def test_groups_of_different_runs_are_not_merged(tmp_path):
    fill(tmp_path / "a.db", run="first")
    with expdb.open(tmp_path / "b.db", run="second") as db:
        db.buffer("train").store(episode_id="new", group_id="g0", x=1, terminated=True)
    for conflict in ("error", "skip_equal"):
        with pytest.raises(errors.EpisodeMismatch, match="already has a group 'g0' of another run"):
            expdb.copy(tmp_path / "b.db", tmp_path / "a.db", on_conflict=conflict)
    expdb.copy(tmp_path / "b.db", tmp_path / "a.db", on_conflict="prefix")


def test_an_interrupted_copy_of_episodes_continues(tmp_path, monkeypatch):
    from expdb.formats import episode_copies

    fill(tmp_path / "a.db", count=6)
    monkeypatch.setattr(episode_copies, "BATCH_ROLLOUTS", 2)
    calls = []

    def stop(name, done, total):
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    arguments = tmp_path / "a.db", tmp_path / "b.db"
    with pytest.raises(KeyboardInterrupt):
        expdb.copy(*arguments, where="step >= 0", on_conflict="error", progress=stop)
    assert expdb.copy(*arguments, where="step >= 0", on_conflict="error") == {"train": 6}
    assert read(tmp_path / "b.db") == read(tmp_path / "a.db")


def test_changed_rewards_change_the_return(tmp_path):
    fill(tmp_path / "a.db")
    expdb.copy(
        tmp_path / "a.db", tmp_path / "b.db", transform=lambda v: {**v, "reward": 0.5}
        if "reward" in v else v,
    )  # fmt: skip
    with expdb.open(tmp_path / "b.db") as db:
        assert db.buffer("train").episodes()["episode_return"].to_pylist() == [1.5] * 4
        assert db.check() == []


def test_children_of_parents_that_are_not_copied_lose_their_relation_with_a_warning(tmp_path):
    with expdb.open(tmp_path / "a.db") as db:
        buffer = db.buffer("train")
        with buffer.episode("t", episode_id="p") as episode:
            for step in range(3):
                episode.append(x=step, reward=0.0)
        buffer.store(
            episode_id="c", x=1, reward=1.0, parent="p", relation="subagent", terminated=True
        )
        with buffer.fork("p", at_step=2, episode_id="f") as fork:
            fork.append(x=9, reward=1.0)
    for where, kept in (("reward > 0", []), ("step >= 1 or reward > 0", ["c"])):
        with pytest.warns(expdb.ExpDBWarning, match="copied without their relation"):
            expdb.copy(tmp_path / "a.db", tmp_path / f"{len(kept)}.db", where=where)
        with expdb.open(tmp_path / f"{len(kept)}.db") as db:
            rows = db.buffer("train").episodes().to_pylist()
            assert [row["episode_id"] for row in rows if row["relation"]] == kept
            assert {"c", "f"} <= {row["episode_id"] for row in rows}
            assert db.check() == []


def test_missing_steps_of_children_count_in_their_length(tmp_path):
    with expdb.open(tmp_path / "a.db") as db:
        buffer = db.buffer("train")
        buffer.store(episode_id="p", x=0, reward=0.0, terminated=True)
        with buffer.episode("t", episode_id="c", parent="p", relation="subagent") as episode:
            episode.append(x=1, reward=1.0)
            episode.append(x=2, reward=2.0)
        with buffer.fork("p", at_step=1, episode_id="f") as fork:
            fork.append(x=1, reward=1.0)
            fork.append(x=2, reward=2.0)
        buffer.delete("reward = 1")
    expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="error")
    assert read(tmp_path / "b.db") == read(tmp_path / "a.db")


def test_a_fork_whose_parent_later_got_earlier_steps_loses_its_relation(tmp_path):
    with expdb.open(tmp_path / "a.db") as db:
        buffer = db.buffer("train")
        parent = buffer.episode("t", episode_id="p")
        parent.append(x=0)
        parent.append(x=1)
        parent.flush()
        with buffer.fork("p", at_step=2, episode_id="f") as fork:
            fork.append(x=9)
        parent.append(x=100, agent_id="other")
        parent.end()
    with pytest.warns(expdb.ExpDBWarning, match="'f' is stored without its relation to .* 'p'"):
        expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="error")
    with expdb.open(tmp_path / "b.db") as db:
        rows = db.buffer("train").episodes().to_pylist()
        assert [(r["episode_id"], r["relation"], r["length"]) for r in rows] == [
            ("p", None, 3), ("f", None, 3),
        ]  # fmt: skip
        assert db.check() == []
    expdb.copy(tmp_path / "a.db", tmp_path / "c.db")
    assert read(tmp_path / "c.db") == read(tmp_path / "a.db")


def test_many_equal_episodes_are_compared_together(tmp_path, monkeypatch):
    fill(tmp_path / "a.db", count=300)
    expdb.copy(tmp_path / "a.db", tmp_path / "b.db")
    scans = []
    original = expdb.ReplayBuffer.scan
    monkeypatch.setattr(
        expdb.ReplayBuffer, "scan", lambda *a, **k: scans.append(1) or original(*a, **k)
    )
    copied = expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="skip_equal")
    assert copied == {"train": 0}
    assert len(scans) <= 20


def test_a_conflict_is_found_before_anything_is_copied(tmp_path):
    fill(tmp_path / "a.db", count=3)
    with expdb.open(tmp_path / "b.db") as db:
        db.buffer("train").store(episode_id="e2", obs=[9.0], terminated=True)
    with pytest.raises(errors.EpisodeMismatch, match="with other values, so nothing was copied"):
        expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="skip_equal")
    with expdb.open(tmp_path / "b.db") as db:
        assert len(db.buffer("train")) == 1


def test_a_buffer_name_with_a_colon_does_not_confuse_copies(tmp_path):
    fill(tmp_path / "a.db", name="a: b")
    for expected in (12, 0):
        copied = expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="error")
        assert copied == {"a: b": expected}


def test_relations_are_kept_between_copied_episodes(tmp_path):
    with expdb.open(tmp_path / "a.db") as db:
        buffer = db.buffer("train")
        with buffer.episode("t", episode_id="root") as episode:
            for step in range(4):
                episode.append(x=step)
        with buffer.fork("root", at_step=2, episode_id="fork") as fork:
            fork.append(x=20)
    expdb.copy(tmp_path / "a.db", tmp_path / "b.db", on_conflict="prefix")
    with expdb.open(tmp_path / "b.db") as db:
        positions = db.buffer("train").steps_of("a/fork", lineage=True)
        assert db.buffer("train").get(positions, fields=["x"])["x"].tolist() == [0, 1, 20]
        assert db.check() == []
