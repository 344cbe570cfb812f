"""Learn to add by group-relative policy gradient.

Groups of rollouts of one prompt, and rewards that come late.
"""

import argparse

import numpy as np
import torch
from torch import nn

import expdb
from expdb import Group, QueryBuilder

PROMPTS, ROLLOUTS, DIGITS, CLIP, ENTROPY = 24, 16, 10, 0.2, 0.2


class Policy(nn.Module):
    """Writes the sum of two digits as two digits, the second one after it has seen the first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4 * DIGITS + 1, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, DIGITS),
        )

    def forward(self, obs):
        """Return the log-probabilities of the digits.

        Obs is [..., 4]: a, b, the place, the digit before.
        """
        parts = [nn.functional.one_hot(obs[..., k], DIGITS) for k in (0, 1, 3)]
        return self.layers(
            torch.cat((*parts, obs[..., 2:3], torch.zeros_like(parts[0])), -1).float()
        ).log_softmax(-1)


def write_answers(policy, prompts, greedy=False):
    """Return observations [B, 2, 4], the digits written [B, 2] and their log-probabilities."""
    before, obs, actions, logprobs = torch.zeros(len(prompts), dtype=torch.int64), [], [], []
    for place in range(2):
        obs.append(
            torch.stack((prompts[:, 0], prompts[:, 1], torch.full_like(before, place), before), 1)
        )
        with torch.no_grad():
            found = policy(obs[-1])
        before = found.argmax(1) if greedy else torch.multinomial(found.exp(), 1)[:, 0]
        actions.append(before)
        logprobs.append(found.gather(1, before[:, None])[:, 0])
    return torch.stack(obs, 1), torch.stack(actions, 1), torch.stack(logprobs, 1)


def play(buffer, policy, version, rng):
    """Store a group of rollouts of some prompts; nobody knows yet what they are worth."""
    prompts = torch.from_numpy(rng.integers(0, DIGITS, (PROMPTS, 2))).repeat_interleave(ROLLOUTS, 0)
    obs, actions, logprobs = (values.numpy() for values in write_answers(policy, prompts))
    name = [f"{a}+{b}" for a, b in prompts.tolist()]
    buffer.store_batch([
        {
            "task_id": name[k], "group_id": f"{run}/{version}/{k // ROLLOUTS}",
            "episode_id": f"{run}/{version}/{k}", "agent_id": "policy",
            "policy_version": version, "obs": obs[k, t], "action": actions[k, t],
            "logprob": logprobs[k, t], "terminated": t == 1,
        }
        for k in range(len(name)) for t in range(2)
    ])  # fmt: skip


def verify(buffer, version):
    """Give the answers their rewards, half of one for each right digit.

    When they have been looked at.
    """
    wanted = QueryBuilder().eq("run", run).and_().eq("policy_version", version)
    right = {}
    for batch in buffer.scan(wanted, fields=["episode_id", "obs", "action", "step"]):
        for episode, obs, action in zip(
            batch["episode_id"], batch["obs"], batch["action"], strict=True
        ):
            digit = (obs[0] + obs[1]) // 10 if obs[2] == 0 else (obs[0] + obs[1]) % 10
            right[episode] = right.get(episode, 0) + int(action == digit)
    for count in range(3):
        answers = [episode for episode, found in right.items() if found == count]
        if answers:
            buffer.update(QueryBuilder().in_("episode_id", answers), reward=count / 2, which="last")


def loss_of(policy, batch):
    """Return the clipped loss with advantages relative to the group (GRPO: Shao et al. 2024).

    A bonus for entropy.
    """
    advantage = (batch["episode_return"] - batch["group_mean"][:, None]) / (
        batch["group_std"][:, None] + 1e-4
    )
    found = policy(batch["obs"])
    ratio = (found.gather(-1, batch["action"][..., None])[..., 0] - batch["logprob"]).exp()
    gain = torch.minimum(
        ratio * advantage[..., None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[..., None]
    )
    entropy = -(found.exp() * found).sum(-1)
    return -(gain + ENTROPY * entropy)[batch["mask"]].mean()


def accuracy(policy):
    """Return the share of all sums that the policy writes right."""
    prompts = torch.cartesian_prod(torch.arange(DIGITS), torch.arange(DIGITS))
    written = write_answers(policy, prompts, greedy=True)[1]
    return float((written[:, 0] * 10 + written[:, 1] == prompts.sum(1)).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="groups.db")
    parser.add_argument("--quick", action="store_true", help="a short run with a lower goal")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng, policy = np.random.default_rng(0), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 2e-3)
    with expdb.open(arguments.file) as db:
        buffer, run = db.buffer("sums", capacity=50_000), db.run
        for version in range(40 if arguments.quick else 250):
            play(buffer, policy, version, rng)
            verify(buffer, version)
            fresh = QueryBuilder().eq("run", run).and_().gte("policy_version", version - 1)
            for _ in range(4):
                try:
                    batch = buffer.sample(
                        PROMPTS, fresh, unit=Group(ROLLOUTS, min_spread=1e-6), rng=rng
                    )
                except expdb.TooFewRows:
                    break  # the rollouts of each group are all as good: nothing to learn from them
                optimizer.zero_grad()
                loss_of(policy, batch.to_torch()).backward()
                optimizer.step()
            if version % 20 == 19:
                print(
                    f"{version + 1} versions: {accuracy(policy):.2f} of all sums are right",
                    flush=True,
                )
        found, wanted = accuracy(policy), 0.1 if arguments.quick else 0.9
        assert found >= wanted, f"{wanted} of all sums were to be right"
        print(
            db.sql(
                """SELECT task_id, count(*) AS answers, avg(episode_return) AS mean
                   FROM experience_episodes
            WHERE run = :run GROUP BY 1 ORDER BY 3 LIMIT 3""",
                {"run": run},
            ).to_pylist()
        )
