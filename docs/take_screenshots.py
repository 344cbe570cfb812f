"""Take the screenshots of `expdb serve`: `python3 dev.py docs --screenshots`.

The program starts actors with an agent that repairs programs, and a learner that becomes slower
than the actors. It serves the pages of this run and saves a screenshot of each view in
`docs/pictures`. Chromium must be installed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import expdb
from expdb.storage.upkeep import reporting

PICTURES = Path(__file__).parent / "pictures"
TASKS = ("fix-parser", "fix-cache", "add-retry", "sort-imports", "fix-date", "rename-field")
GROUP = 4
SECONDS = 45  # time before the first picture
VIEWS = {
    "overview": "/b/train",
    "episodes": '/b/train/episodes?q=episode_return+<+1+and+status+%3D+"complete"',
    "episode": "/b/train/e/{failed}",
    "group": "/b/train/group?task={task}&group={group}",
    "ledger": "/b/train/ledger/learner/{lease}",
    "random": "/b/train/random",
    "sql": "/sql?q=SELECT+last_policy_version,+avg(episode_return)+AS+mean_return,+count(*)+AS+"
    "episodes%0AFROM+experience_episodes+WHERE+status+%3D+'complete'%0AGROUP+BY+1+ORDER+BY+1",
}


def rollout(rng: np.random.Generator, task: str, skill: float) -> list[dict[str, object]]:
    """Return the turns of one rollout, which is solved with the probability `skill`."""
    calls = [
        ("read_file", {"path": f"src/{task.replace('-', '_')}.py"}),
        ("run_tests", {"pattern": task}),
        ("write_file", {"path": f"src/{task.replace('-', '_')}.py", "lines": "12-18"}),
        ("run_tests", {"pattern": task}),
    ]
    is_solved = rng.random() < skill
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You repair Python programs. Call one tool per turn."},
        {"role": "user", "content": f"The test of **{task}** fails. Repair the program."},
    ]
    turns = []
    for index, (name, arguments) in enumerate(calls):
        call = {"function": {"name": name, "arguments": json.dumps(arguments)}}
        thought = ("First I read the file.", "I run the tests before I change anything.",
                   "The loop skips the last line. I change the bound:\n\n```python\nfor i in range("
                   "len(lines)):\n    ...\n```", "Now the tests should pass.")[index]  # fmt: skip
        messages = [*messages, {"role": "assistant", "content": thought, "tool_calls": [call]}]
        fails = name == "run_tests" and (index == 1 or not is_solved)
        result = "Error: 1 failed, 11 passed" if fails else "12 passed" if index == 3 else "ok"
        messages = [*messages, {"role": "tool", "name": name, "content": result}]
        length = int(rng.integers(25, 60))
        turns.append(
            {
                "messages": messages,
                "output_ids": rng.integers(0, 50_000, length).astype(np.int32),
                "output_mask": np.ones(length, bool),
                "logprobs": -rng.exponential(0.6, length).astype(np.float32),
                "reward": float(is_solved) if index == 3 else 0.0,
            }
        )
    return turns


def act(location: str, number: int, stop: threading.Event) -> None:
    """Write groups of rollouts as one actor."""
    rng = np.random.default_rng(number)
    with expdb.open(location, run="repair-7b") as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        while not stop.is_set():
            admission = buffer.admit(wait=0.5, required=False)
            if admission is None:
                continue
            task, version = str(rng.choice(TASKS)), buffer.policy_version or 0
            group = f"{task}-{rng.integers(1e6):06d}"
            for _ in range(GROUP):
                skill = min(0.95, 0.2 + 0.03 * version + 0.1 * (len(task) % 3))
                with buffer.episode(
                    task, group_id=group, policy_version=version, agent_id=f"actor-{number}"
                ) as episode:
                    for index, turn in enumerate(rollout(rng, task, skill)):
                        episode.append(**turn, terminated=index == 3)
                        time.sleep(0.01)
            admission.finish()


def learn(location: str, stop: threading.Event) -> None:
    """Lease groups, acknowledge them and raise the policy version as the learner."""
    with expdb.open(location, run="repair-7b") as db:
        buffer = db.buffer("train")
        consumer = buffer.consumer("learner", max_times_sampled=1, seed=0)
        step = 0
        while not stop.is_set():
            try:
                lease = consumer.lease(4, unit=expdb.Group(GROUP), wait=1.0)
            except expdb.TooFewRows:
                continue
            stop.wait(0.5 if step < 60 else 4.0)  # after 60 steps, the actors wait for the learner
            lease.acknowledge(step)
            step += 1
            buffer.policy_version = step


@contextmanager
def running(location: str) -> Iterator[dict[str, object]]:
    """Run actors and a learner, and yield the ids in the addresses of the views."""
    reporting.FIRST_REPORT_SECONDS, reporting.REPORT_SECONDS = 0.5, 1.0
    stop = threading.Event()
    with expdb.open(location, run="repair-7b") as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        buffer.policy_version = 0
        buffer.pace = expdb.Pace(max_staleness=2, groups_per_version=4)
        threads = [threading.Thread(target=act, args=(location, k, stop)) for k in range(3)]
        threads.append(threading.Thread(target=learn, args=(location, stop)))
        for thread in threads:
            thread.start()
        try:
            time.sleep(SECONDS)
            lost = buffer.episodes({"episode_return": 0.0, "status": "complete"}).to_pylist()[-1]
            buffer.score(episode_id=lost["episode_id"], name="style", value=0.7, by="judge-2b")
            lease = buffer.leases(status="acknowledged", limit=1).to_pylist()[0]["lease"]
            group = {"task": lost["task_id"], "group": lost["group_id"]}
            yield {"failed": lost["episode_id"], "lease": lease, **group}
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def take(url: str, names: dict[str, object]) -> None:
    """Save a picture of each view."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not installed; run apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 760})
        for name, path in VIEWS.items():
            page.goto(url + path.format(**names))
            page.wait_for_timeout(1_000)
            if name == "episode":
                page.click("#step-0 .tokens summary")
                page.wait_for_timeout(300)
            page.screenshot(path=PICTURES / f"serve-{name}.png")
            print(f"docs/pictures/serve-{name}.png")
        browser.close()


def main() -> None:
    """Start a run and take all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        location = str(Path(folder) / "runs.db")
        command = [sys.executable, "-m", "expdb", "serve", location, "--port", "0", "--json"]
        with (
            running(location) as names,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        ):
            assert server.stdout is not None
            try:
                take(json.loads(server.stdout.readline())["url"].rstrip("/"), names)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
