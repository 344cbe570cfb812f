"""Episodes are exported as a Minari dataset, and datasets are imported."""

import numpy as np
import pytest

import expdb
from expdb import formats

WHY = "minari is not installed: run `python3 dev.py test --ecosystems`"
minari = pytest.importorskip("minari", reason=WHY)


def fill(buffer, nested):
    rng = np.random.default_rng(0)
    for number in range(5):
        with buffer.episode("t", episode_id=f"e{number}", episode_tags={"seed": number}) as episode:
            for step in range(3 + number):
                image, speed = rng.integers(0, 255, (4, 4, 3), np.uint8), rng.random(2, np.float32)
                episode.append(
                    obs={"image": image, "speed": speed} if nested else speed,
                    action=np.int64(step % 2), reward=float(rng.random()),
                    terminated=number % 2 == 0 and step == 2 + number,
                    truncated=number % 2 == 1 and step == 2 + number,
                )  # fmt: skip
            episode.end(obs={"image": image, "speed": speed} if nested else speed)


def steps_of(buffer):
    fields = list(buffer.stats()["fields"])
    finals = [f"next_{name}" for name in fields if name.startswith("obs")]
    names = [*fields, *finals, "reward", "terminated", "truncated", "step"]
    rows = [row for batch in buffer.scan(fields=names) for row in batch.to_list()]
    return [
        {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_an_exported_dataset_is_imported_again(new_buffer, tmp_path, nested):
    buffer, by_path, by_object = new_buffer(), new_buffer(), new_buffer()
    fill(buffer, nested)
    assert formats.write_minari(buffer, tmp_path / "out", dataset_id="cart/random-v0") == 5
    dataset = minari.MinariDataset(tmp_path / "out" / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (5, 25)
    assert [episode.rewards.shape[0] for episode in dataset.iterate_episodes()] == [3, 4, 5, 6, 7]
    for target, source in ((by_path, tmp_path / "out"), (by_object, dataset)):
        assert formats.import_rollouts(target, formats.read(source)).refused == []
        assert steps_of(target) == steps_of(buffer)
    rows = by_path.episodes().to_pylist()
    assert (rows[1]["episode_id"], rows[1]["episode_tags"]) == ("cart/random-v0/1", '{"seed":1}')
    assert formats.import_rollouts(by_path, formats.read(dataset)).known == 5


def test_episodes_without_a_final_observation_are_left_out_with_a_warning(scratch, tmp_path):
    fill(scratch, False)
    scratch.store(obs=np.zeros(2, np.float32), action=np.int64(0), terminated=True)
    with pytest.warns(expdb.ExpDBWarning, match="1 episodes are left out"):
        assert formats.write_minari(scratch, tmp_path / "out") == 5


def test_fields_that_a_dataset_cannot_hold_are_refused(new_buffer, tmp_path):
    buffer = new_buffer()
    fill(buffer, False)
    with pytest.raises(expdb.InvalidValue, match="has no field 'state'"):
        formats.write_minari(buffer, tmp_path / "out", observation="state")
    texts = new_buffer()
    texts.store(obs="text", action=1)
    with pytest.raises(expdb.InvalidValue, match="needs arrays of a fixed shape"):
        formats.write_minari(texts, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
