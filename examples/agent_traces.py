"""Store the messages and tool calls of agents, set rewards later, and sample hard tasks."""

import asyncio
import json
import sys
from dataclasses import dataclass

import expdb
from expdb import QueryBuilder

TASKS = {"refund-7": ("refund an order", "hard"), "status-2": ("tell an order's status", "easy")}


@dataclass
class ToolCall:
    """A tool call of an agent. Dataclasses and pydantic models are stored as JSON."""

    id: str
    name: str
    arguments: str


def turns(task_id):
    """Yield two agent messages in OpenAI's format: a tool call, then an answer."""
    yield {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "find", "arguments": json.dumps({"id": task_id})},
            }
        ],
    }
    yield {"role": "assistant", "content": f"About {task_id}: done.", "tool_calls": None}


def run_agent(buffer, task_id, attempt):
    """Run an agent, and store each turn with all previous messages.

    expdb stores a message that occurs in several turns once per chunk (block of encoded steps).
    """
    name, difficulty = TASKS[task_id]
    messages = [
        {"role": "system", "content": "You help customers."},
        {"role": "user", "content": f"Please {name}."},
    ]
    episode_id = f"{buffer.name}/{task_id}/{attempt}/{len(buffer)}"
    for answer in turns(task_id):
        calls = [ToolCall(call["id"], **call["function"]) for call in answer["tool_calls"] or ()]
        buffer.store(
            task_id=task_id, task_name=name, agent_id="support", episode_id=episode_id,
            group_id=task_id,
            messages=messages, action=answer, tool_calls=calls, tags={"difficulty": difficulty},
        )  # fmt: skip
        messages.append(answer)
        for call in calls:
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"order": "found"})}
            )
    buffer.end_episode(episode_id)
    return episode_id


async def run_concurrently(buffer, attempts):
    """Run several agents at the same time.

    expdb calls block, so each agent runs in a thread. Threads can share the handle.
    """
    jobs = [
        asyncio.to_thread(run_agent, buffer, task, attempt)
        for task in TASKS
        for attempt in range(attempts)
    ]
    return await asyncio.gather(*jobs)


with expdb.open(sys.argv[1] if len(sys.argv) > 1 else "traces.db") as db:
    buffer = db.buffer("traces")
    buffer.index("tags.difficulty")
    run_agent(buffer, "refund-7", attempt=0)
    episodes = asyncio.run(run_concurrently(buffer, attempts=3))
    # The rewards arrive later. Set the reward of the last step of each episode.
    for number, episode_id in enumerate(episodes):
        buffer.update({"episode_id": episode_id}, reward=float(number % 2), which="last")
    hard = QueryBuilder().eq("tags.difficulty", "hard").and_().is_not_null("reward")
    for task, steps in buffer.sample_tasks(
        1, hard, fields=["episode", "step", "reward", "messages", "tool_calls"]
    ).items():
        print(
            task,
            "has",
            steps.size,
            "steps; longest conversation:",
            max(map(len, steps["messages"])),
            "messages",
        )
        print("  first tool call:", next(calls[0] for calls in steps["tool_calls"] if calls))
    print(db.sql("SELECT task_name, status, count(*) AS episodes, avg(episode_return) AS "
                 "mean_return "
                 "FROM experience_episodes GROUP BY 1, 2").to_pylist())  # fmt: skip
    assert db.check() == []
