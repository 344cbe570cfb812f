"""Tests of rows of `Tokens`, compared with the builder of TRL 1.16."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from conversations import random_conversation, store

import expdb
from expdb import Tokens, Uniform

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
WHY = "TRL is not installed: run `python3 dev.py test --ecosystems`"
builder = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker", reason=WHY)

THRESHOLD = 8
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
GUIDES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def rows_of_trl(turns):
    records = [
        builder.TurnRecord(
            turn["prompt_ids"], turn["output_ids"], turn["logprobs"],
            [int(trained) for trained in turn["output_mask"]],
        )
        for turn in turns
    ]  # fmt: skip
    rows, _ = builder._chain_to_sequences(records, "rollout", THRESHOLD)
    return [[row.input_ids, row.completion_mask, row.old_log_probs] for row in rows]


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")  # tokens are lost on purpose
def test_rows_equal_those_of_trl(tmp_path):
    rng = np.random.default_rng(1)
    conversations = [random_conversation(rng, THRESHOLD) for _ in range(1000)]
    expected = [row for turns in conversations for row in rows_of_trl(turns)]
    with expdb.open(tmp_path / "rows.db") as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        for turns in conversations:
            store(buffer, turns)
        unit = Tokens(drift_threshold=THRESHOLD)
        batch = buffer.sample(1000, sampler=Uniform(replace=False), unit=unit)
    columns = [batch["input_ids"], batch["loss_mask"].astype(int), batch["logprobs"]]
    lengths = batch["attention_mask"].sum(1).tolist()
    rows = [[column[row, :length].tolist() for column in columns]
            for row, length in enumerate(lengths)]  # fmt: skip
    assert len(rows) > 1000
    assert sorted(rows) == sorted(expected)


def test_the_trainer_of_trl_trains_on_stored_rollouts(tmp_path, monkeypatch):
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.chdir(tmp_path)
    guide = (GUIDES / "train-trl-on-stored-rollouts.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[:2]:
        exec(block, names)
    words = models.WordLevel({f"w{k}": k for k in range(64)}, unk_token="w3")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), eos_token="w1", pad_token="w0", unk_token="w3"
    )
    config = LlamaConfig(**SIZES, eos_token_id=1, pad_token_id=0)
    settings = GRPOConfig(
        str(tmp_path / "out"), num_generations=4, per_device_train_batch_size=4, max_steps=3,
        report_to="none", use_cpu=True, bf16=False, save_strategy="no", logging_steps=1,
    )  # fmt: skip
    rollout_func = names["StoredRollouts"](names["buffer"], 4, "judge", 64)
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(config), args=settings, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "w5"}] * 8),
        reward_funcs=[names["stored_score"]], rollout_func=rollout_func,
    )  # fmt: skip
    trainer.train()
    rollout_func.finish()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["reward"] for entry in logged] == [0.5, 0.5, 0.5]
    assert all(entry["grad_norm"] > 0 for entry in logged)
    stats = names["buffer"].consumer("grpo_trainer").stats()
    assert (stats["leased"], stats["acknowledged"]) == (3, 3)
    names["db"].close()
