"""Tests of rows of `Tokens`, compared with the branches of verifiers 0.4."""

import numpy as np
import pytest

import expdb
from expdb import Tokens, Uniform, formats

WHY = "verifiers is not installed: run `python3 dev.py test --ecosystems`"
pytest.importorskip("verifiers.v1.trace", reason=WHY)

if True:  # these imports need the package
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import Trace


def node(parent, rng, sampled):
    """Return a message of random tokens; a model's message begins with template tokens."""
    count, scaffold = int(rng.integers(1, 9)), int(rng.integers(0, 3)) if sampled else 0
    mask = [False] * scaffold + [sampled] * count
    role = "assistant" if sampled else "user"
    tokens = rng.integers(0, 50, len(mask)).tolist()
    return MessageNode(
        parent=parent, message={"role": role, "content": "text"}, sampled=sampled,
        token_ids=tokens, mask=mask,
        logprobs=(-rng.random(count, np.float32)).tolist() if sampled else [],
    )  # fmt: skip


def random_nodes(rng, forks):
    """Return alternating user and model messages; with `forks`, some continue earlier ones."""
    nodes, tip = [], None
    for _ in range(int(rng.integers(1, 7))):
        nodes.append(node(tip, rng, False))
        nodes.append(node(len(nodes) - 1, rng, True))
        tip = len(nodes) - 1
        if forks and rng.random() < 0.5:
            tip = int(rng.choice([k for k, other in enumerate(nodes) if other.sampled]))
    return nodes


def record_of(nodes, name):
    """Return the record of a trace, as far as expdb reads it."""
    return {
        "id": name, "task": {"type": "task"}, "agent": {"name": "a"}, "rewards": {},
        "nodes": [own.model_dump() for own in nodes],
    }  # fmt: skip


def rows_of(batch):
    lengths = batch["attention_mask"].sum(1).tolist()
    names = ("input_ids", "loss_mask", "logprobs")
    return sorted(
        [batch[name][row, :length].tolist() for name in names] for row, length in enumerate(lengths)
    )


def branches_of(nodes):
    trace = Trace.model_construct(nodes=nodes, calls=[], mm_token_type_id_map={})
    return [[branch.token_ids, branch.sampled_mask, branch.logprobs] for branch in trace.branches]


# Branches of a trace begin new rows, which is what the test compares.
@pytest.mark.filterwarnings("ignore:.* later prompts in this batch")
@pytest.mark.parametrize("forks", [False, True])
def test_rows_equal_branches(tmp_path, forks):
    rng = np.random.default_rng(2)
    traces = [random_nodes(rng, forks) for _ in range(200)]
    with expdb.open(tmp_path / "rows.db") as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        records = [record_of(nodes, f"e{number}") for number, nodes in enumerate(traces)]
        assert formats.import_rollouts(buffer, formats.read(records)).refused == []
        unit = Tokens(drift_threshold=1)
        batch = buffer.sample(200, sampler=Uniform(replace=False), unit=unit)
    rows = rows_of(batch)
    branches = [branch for nodes in traces for branch in branches_of(nodes)]
    if not forks:
        assert rows == sorted(branches)
        return
    # A branch trains the generated tokens of its whole path, so two branches train the tokens that
    # they share. A row has the tokens of earlier rows as context.
    generated = sum(sum(node.mask) for nodes in traces for node in nodes)
    assert sum(sum(mask) for _, mask, _ in rows) == generated
    assert sum(sum(mask) for _, mask, _ in branches) > generated
    texts = {tuple(ids) for ids, _, _ in rows}
    assert {tuple(ids) for ids, _, _ in branches} <= texts
