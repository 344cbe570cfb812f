"""Random conversations of a language model, and a plain reference for their rows of tokens."""

import numpy as np


def random_conversation(rng, threshold=8):
    """Return turns with drift around a threshold, forks, and tool text in the outputs."""
    turns, text = [], rng.integers(0, 50, rng.integers(0, 12)).tolist()
    for _ in range(rng.integers(1, 8)):
        output = rng.integers(0, 50, rng.integers(0, 20)).tolist()
        mask = (rng.random(len(output)) < rng.choice([0.0, 0.7, 1.0])).tolist()
        turns.append(
            {
                "prompt_ids": list(text),
                "output_ids": output,
                "output_mask": mask,
                "logprobs": (-rng.random(len(output), np.float32)).tolist(),
            }
        )
        text = text + output
        what = rng.random()
        if what < 0.35 and text:  # the template changes the end of the text
            drift = int(rng.integers(1, min(len(text), 2 * threshold) + 1))
            tail = rng.integers(0, 50, rng.integers(0, drift + 3)).tolist()
            text = text[: len(text) - drift] + tail
        elif what < 0.45:  # the history is summarized
            text = rng.integers(0, 50, rng.integers(0, 10)).tolist()
        elif what < 0.5:
            text = text[: int(rng.integers(0, len(text) + 1))]
        text = text + rng.integers(0, 50, rng.integers(0, 6)).tolist()
    return turns


def reference_rows(turns, threshold):
    """Return (ids, mask, logprobs, lost tokens) of each row, token by token, as lists."""
    rows = []
    for turn in turns:
        prompt, row = turn["prompt_ids"], rows[-1] if rows else None
        if row is not None:
            same = 0
            while same < min(len(row["ids"]), len(prompt)) and row["ids"][same] == prompt[same]:
                same += 1
            drift = len(row["ids"]) - same
            if drift and (same < row["answer"] or drift >= threshold):
                row = None
            elif drift:
                row["lost"] += sum(row["mask"][same:])
                for name in ("ids", "mask", "logprobs"):
                    del row[name][same:]
        if row is None:
            row = {"ids": [], "mask": [], "logprobs": [], "lost": 0}
            rows.append(row)
        context = prompt[len(row["ids"]) :]
        row["ids"] += context
        row["mask"] += [False] * len(context)
        row["logprobs"] += [0.0] * len(context)
        row["answer"] = len(row["ids"])
        row["ids"] += turn["output_ids"]
        row["mask"] += turn["output_mask"]
        row["logprobs"] += turn["logprobs"]
    lost = sum(row["lost"] for row in rows if not any(row["mask"]))
    rows = [row for row in rows if any(row["mask"])]
    if rows:
        rows[0]["lost"] += lost
    return rows


def store(buffer, turns, task="task", **options):
    """Store a conversation as an episode and return its id."""
    with buffer.episode(task, **options) as episode:
        for turn in turns:
            episode.append(**turn)
    return episode.episode_id
