"""Train a policy to add two digits with GRPO.

The program samples a group of rollouts per prompt, and sets the rewards after the rollouts.
"""

import argparse

import numpy as np
import torch
from torch import nn

import expdb
from expdb import Group, QueryBuilder

PROMPTS, ROLLOUTS, DIGITS, CLIP, ENTROPY = 24, 16, 10, 0.2, 0.2


class Policy(nn.Module):
    """A network that writes the two-digit sum of two digits, one digit at a time."""

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
        """Return the log-probabilities of the next digit.

        `obs` has the shape [..., 4]: both addends, the place of the digit (0 for tens, 1 for
        ones), and the previous digit.
        """
        parts = [nn.functional.one_hot(obs[..., k], DIGITS) for k in (0, 1, 3)]
        return self.layers(
            torch.cat((*parts, obs[..., 2:3], torch.zeros_like(parts[0])), -1).float()
        ).log_softmax(-1)


def write_answers(policy, prompts, greedy=False):
    """Return observations [B, 2, 4], digits [B, 2] and the log-probabilities of the digits."""
    before, obs, actions, logprobs = torch.zeros(len(prompts), dtype=torch.int64), [], [], []
    for place in range(2):
        obs.append(
            torch.stack((prompts[:, 0], prompts[:, 1], torch.full_like(before, place), before), 1)
        )
        with torch.no_grad():
            scores = policy(obs[-1])
        before = scores.argmax(1) if greedy else torch.multinomial(scores.exp(), 1)[:, 0]
        actions.append(before)
        logprobs.append(scores.gather(1, before[:, None])[:, 0])
    return torch.stack(obs, 1), torch.stack(actions, 1), torch.stack(logprobs, 1)


def play(buffer, policy, version, rng):
    """Store one group of rollouts per random prompt, without rewards."""
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
    """Set the reward of each answer to 0.5 per correct digit."""
    where = QueryBuilder().eq("run", run).and_().eq("policy_version", version)
    correct = {}
    for batch in buffer.scan(where, fields=["episode_id", "obs", "action", "step"]):
        for episode, obs, action in zip(
            batch["episode_id"], batch["obs"], batch["action"], strict=True
        ):
            digit = (obs[0] + obs[1]) // 10 if obs[2] == 0 else (obs[0] + obs[1]) % 10
            correct[episode] = correct.get(episode, 0) + int(action == digit)
    for count in range(3):
        answers = [episode for episode, digits in correct.items() if digits == count]
        if answers:
            buffer.update(QueryBuilder().in_("episode_id", answers), reward=count / 2, which="last")


def loss_of(policy, batch):
    """Return the clipped loss of GRPO (Shao et al. 2024) with an entropy bonus."""
    advantage = (batch["episode_return"] - batch["group_mean"][:, None]) / (
        batch["group_std"][:, None] + 1e-4
    )
    scores = policy(batch["obs"])
    ratio = (scores.gather(-1, batch["action"][..., None])[..., 0] - batch["logprob"]).exp()
    gain = torch.minimum(
        ratio * advantage[..., None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[..., None]
    )
    entropy = -(scores.exp() * scores).sum(-1)
    return -(gain + ENTROPY * entropy)[batch["mask"]].mean()


def accuracy(policy):
    """Return the fraction of all sums that the policy writes correctly."""
    prompts = torch.cartesian_prod(torch.arange(DIGITS), torch.arange(DIGITS))
    written = write_answers(policy, prompts, greedy=True)[1]
    return float((written[:, 0] * 10 + written[:, 1] == prompts.sum(1)).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="groups.db")
    parser.add_argument("--quick", action="store_true", help="short run with a lower goal")
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
                    break  # all rollouts of a group have the same reward
                optimizer.zero_grad()
                loss_of(policy, batch.to_torch()).backward()
                optimizer.step()
            if version % 20 == 19:
                print(
                    f"{version + 1} versions: {accuracy(policy):.2f} of all sums are correct",
                    flush=True,
                )
        required = 0.1 if arguments.quick else 0.9
        assert accuracy(policy) >= required, f"the accuracy must be at least {required}"
        print(
            db.sql(
                """SELECT task_id, count(*) AS answers, avg(episode_return) AS mean
                   FROM experience_episodes
            WHERE run = :run GROUP BY 1 ORDER BY 3 LIMIT 3""",
                {"run": run},
            ).to_pylist()
        )
