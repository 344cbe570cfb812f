"""Store the tokens of agents that run as coroutines, score them by a judge, sample hard tasks."""

import asyncio
import random
import sys

import numpy as np

import expdb
from expdb import QueryBuilder

TASKS = {"refund-7": ("refund an order", "hard"), "status-2": ("tell an order's status", "easy")}
generator = np.random.default_rng(0)


async def generate(prompt_ids):
    """Return the token ids of an answer, and their log-probabilities. Call your model here."""
    await asyncio.sleep(generator.uniform(0.001, 0.01))
    return generator.integers(0, 256, 40, dtype=np.int32), -generator.random(40, dtype=np.float32)


def encode(text):
    """Return the token ids of a text. Call your tokenizer here."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


async def run_agent(buffer, task_id):
    """Run an agent for two turns: a tool call, then an answer."""
    name, difficulty = TASKS[task_id]
    messages = [{"role": "user", "content": f"Please {name}."}]
    prompt_ids = encode(messages[0]["content"])
    async with buffer.episode(
        task_id, task_name=name, agent_id="support", group_id=task_id, policy_version=0,
        episode_tags={"difficulty": difficulty},
    ) as episode:  # fmt: skip
        for turn in range(2):
            output_ids, logprobs = await generate(prompt_ids)
            answer = {"role": "assistant", "content": f"About {task_id}: turn {turn}."}
            # expdb stores the repeated parts of prompts and messages once.
            episode.append(
                prompt_ids=prompt_ids, output_ids=output_ids, logprobs=logprobs, messages=messages,
                action=answer,
            )  # fmt: skip
            messages = [*messages, answer, {"role": "tool", "content": "order found"}]
            prompt_ids = np.concatenate([prompt_ids, output_ids, encode("order found")])
    return episode.episode_id


async def judge(rng):
    """Return a score. One judge in three takes too long."""
    await asyncio.sleep(1.0 if rng.random() < 1 / 3 else 0.005)
    return float(rng.random() < 0.5)


async def run_and_score(buffer, rng, task_id):
    """Run an agent, and set its reward if the judge answers in time."""
    episode = {"episode_id": await run_agent(buffer, task_id)}
    try:
        reward = await asyncio.wait_for(judge(rng), timeout=0.2)
    except TimeoutError:
        await buffer.update_async(episode, episode_tags={"judge": "timeout"})
    else:
        await buffer.update_async(episode, reward=reward, which="last")


async def main(db):
    """Run all agents at the same time, then sample the steps of hard tasks."""
    buffer = db.buffer("traces", fields=expdb.TOKEN_FIELDS)
    buffer.index("episode_tags.difficulty")
    rng = random.Random(1)
    await asyncio.gather(*(run_and_score(buffer, rng, task) for task in TASKS for _ in range(4)))

    scored = QueryBuilder().is_not_null("episode_return")
    late = buffer.episodes({"episode_tags.judge": "timeout"}).num_rows
    print(buffer.episodes(scored).num_rows, "episodes have a score;", late, "judges were late")
    hard = scored.and_().eq("episode_tags.difficulty", "hard")
    for task, steps in buffer.sample_tasks(1, hard, fields=["prompt_ids", "messages"]).items():
        longest = max(map(len, steps["prompt_ids"]))
        print(f"{task} has {steps.size} steps; the longest prompt has {longest} tokens")
        print("  last message:", steps["messages"][-1][-1])
    assert db.check() == []


with expdb.open(sys.argv[1] if len(sys.argv) > 1 else "traces.db") as db:
    asyncio.run(main(db))
