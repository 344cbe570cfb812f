"""Train a small language model to call a tool, with GRPO on two ranks.

The model answers a sum such as "3+4=" with the last digit of the result. If it writes TOOL, the
prompt of its next turn contains the digit. An actor plays while two processes train, so a rollout
can be one policy version old. A judge scores complete episodes.
"""

import argparse
import copy
import tempfile
import threading
import uuid

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

import expdb
from expdb import QueryBuilder

PLUS, EQUALS, TOOL, VOCABULARY = 10, 11, 12, 13
GROUPS, ROLLOUTS, UPDATES, CLIP = 8, 8, 6, 0.2
UNIT = expdb.Tokens(of=expdb.Group(ROLLOUTS, score="judge"), max_tokens=16, advantage="grpo")


class Policy(nn.Module):
    """A recurrent network."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.memory = nn.GRU(32, 96, batch_first=True)
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, input_ids):
        """Return log-probabilities [B, T, VOCABULARY]."""
        return self.head(self.memory(self.embedding(input_ids))[0]).log_softmax(-1)


@torch.no_grad()
def generate(policy, prompt):
    """Return a list of one token, and an array with its log-probability."""
    logprobs = policy(torch.tensor([prompt]))[0, -1]
    token = torch.multinomial(logprobs.exp(), 1)
    return token.tolist(), logprobs[token].numpy()


def play(buffer, policies, stop):
    """Play groups of rollouts with the current policy version."""
    rng = np.random.default_rng()
    while not stop.is_set():
        admission = buffer.admit(wait=0.5, required=False)  # waits if it is too far ahead
        if not admission:
            continue
        (a, b), group, version = rng.integers(0, 10, 2), str(uuid.uuid4()), admission.policy_version
        with admission:
            for _ in range(ROLLOUTS):
                with buffer.episode(f"{a}+{b}", group_id=group, policy_version=version) as episode:
                    prompt, output = [a, PLUS, b, EQUALS], [TOOL]
                    while output == [TOOL] and len(prompt) < 8:
                        output, logprobs = generate(policies[version], prompt)
                        episode.append(prompt_ids=prompt, output_ids=output, logprobs=logprobs)
                        prompt = [*prompt, *output, (a + b) % 10, EQUALS]


def judge(buffer, stop):
    """Score complete episodes: 0.2 for calling the tool, and 0.8 for the correct digit."""
    unscored = QueryBuilder().is_null("scores.judge").and_().eq("status", "complete")
    unit, judges = expdb.Episode(), buffer.consumer("judges")
    while not stop.is_set():
        try:
            lease = judges.lease(64, unscored, unit=unit, at_least=8, wait=0.5)
        except expdb.TooFewRows:
            continue
        batch, last = lease.batch, lease.batch["length"] - 1
        answers = [row[turn][0] for row, turn in zip(batch["output_ids"], last, strict=True)]
        digits = [(prompt[0] + prompt[2]) % 10 for prompt in batch["prompt_ids"][:, 0]]
        values = 0.2 * (last > 0) + 0.8 * np.equal(answers, digits)
        lease.acknowledge(scores={"episode": batch["episode"], "name": "judge", "value": values})


def compute_loss(policy, batch):
    """Return the clipped loss of GRPO, and the log-probability of each token."""
    ids = batch["input_ids"].long()
    logprobs = policy(ids)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    logprobs = nn.functional.pad(logprobs, (1, 0))
    ratio, advantage = (logprobs - batch["logprobs"]).exp(), batch["advantage"]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -gain[batch["loss_mask"]].sum() / batch["loss_tokens"][0], logprobs.detach().numpy()


def train(rank, file, name, folder, versions, policies):
    """Train on one rank; rank 0 leases the batches, and returns the mean score."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    policy, oldest, lease = Policy(), expdb.Ordered("position"), None
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    with expdb.open(file) as db:
        buffer = db.buffer(name)
        trainer = buffer.consumer("trainer", max_times_sampled=1, max_staleness=1)
        for version in range(versions):
            if rank == 0:
                policies[version] = copy.deepcopy(policy)
                buffer.policy_version = version
                lease = trainer.lease(
                    GROUPS,
                    unit=UNIT,
                    sampler=oldest,
                    trainer_step=version,
                    wait=60,
                    pin=True,
                    shard=(0, 2),
                )
            id = [lease and lease.id]
            dist.broadcast_object_list(id)
            batch = lease.batch if lease else trainer.shared(id[0], shard=(1, 2))
            for _ in range(UPDATES):
                loss, logprobs = compute_loss(policy, batch.to_torch())
                optimizer.zero_grad()
                loss.backward()
                for parameter in policy.parameters():
                    dist.all_reduce(parameter.grad)  # a sum: each rank divides by all tokens
                optimizer.step()
            batch.annotate(version, trainer_logprobs=logprobs)
            dist.barrier()
            if lease:
                lease.acknowledge()
                if version % 10 == 9:
                    score = np.nanmean(batch["reward"])
                    print(f"{version + 1} versions: mean score {score:.2f}", flush=True)
    dist.destroy_process_group()
    return score if lease else None


def main(file, versions, required):
    """Start rank 1, the actor and the judge, and train."""
    stop = threading.Event()
    torch.manual_seed(0)
    policies = {0: Policy()}
    with expdb.open(file) as db, tempfile.TemporaryDirectory() as folder:
        buffer = db.buffer(f"sums-{db.run}", fields=expdb.TOKEN_FIELDS)
        buffer.policy_version = 0
        buffer.pace = expdb.Pace(max_staleness=1, groups_per_version=GROUPS)
        arguments = file, buffer.name, folder, versions, policies
        spawn = multiprocessing.get_context("spawn").Process
        workers = [
            spawn(target=train, args=(1, *arguments), daemon=True),
            threading.Thread(target=play, args=(buffer, policies, stop)),
            threading.Thread(target=judge, args=(buffer, stop)),
        ]
        for worker in workers:
            worker.start()
        try:
            score = train(0, *arguments)
        finally:
            stop.set()
        for worker in workers:
            worker.join()
    assert score >= required, f"the mean score must be at least {required}, got {score:.2f}"
    print(f"{score:.2f} is at least {required}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="groups.db")
    parser.add_argument("--quick", action="store_true", help="10 versions instead of 50")
    arguments = parser.parse_args()
    main(arguments.file, *((10, 0.1) if arguments.quick else (50, 0.4)))
