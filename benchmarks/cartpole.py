"""Steps that DQN takes to a return of 195 on CartPole, with a framework's own buffer and with ours.

    python -m benchmarks.cartpole di_engine | rllib  [SEEDS]

It runs where the framework is installed: in `.venv-di-engine` or `.venv-rllib`. Both sides have the
same seed, and draw differently from the first update on: what counts is the spread over seeds.
Stable-Baselines3 is left out, as the same seed gives the same training to the last bit there
(`tests/integrations/test_stable_baselines3.py`).
"""

import logging
import sys
import tempfile
from collections import deque
from pathlib import Path

import numpy as np

GOAL, MOST = 195, 60_000


def di_engine(ours: bool, seed: int, folder: Path) -> int:
    """Train with DI-engine's `DequeBuffer`, or ours; return the steps at the goal."""
    import gym
    from ding.config import compile_config
    from ding.data import DequeBuffer
    from ding.envs import BaseEnvManagerV2, DingEnvWrapper
    from ding.framework import task
    from ding.framework.context import OnlineRLContext
    from ding.framework.middleware import (
        OffPolicyLearner,
        StepCollector,
        data_pusher,
        eps_greedy_handler,
        interaction_evaluator,
    )
    from ding.model import DQN
    from ding.policy import DQNPolicy
    from ding.utils import set_pkg_seed
    from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config

    from expdb.integrations import di_engine as adapter

    main_config.exp_name = str(folder / "experiment")
    cfg = compile_config(main_config, create_cfg=create_config, auto=True, save_cfg=False)
    size = cfg.policy.other.replay_buffer.replay_buffer_size
    buffer = adapter.DequeBuffer(size, location=folder / "runs.db") if ours else DequeBuffer(size)
    reached = {"steps": MOST}

    def environments(count: int) -> BaseEnvManagerV2:
        make = [lambda: DingEnvWrapper(gym.make("CartPole-v0")) for _ in range(count)]
        return BaseEnvManagerV2(env_fn=make, cfg=cfg.env.manager)

    def stop_at_the_goal(ctx: OnlineRLContext) -> None:
        if ctx.eval_value >= GOAL or ctx.env_step >= MOST:
            reached["steps"] = ctx.env_step
            task.finish = True

    with task.start(async_mode=False, ctx=OnlineRLContext()):
        set_pkg_seed(seed, use_cuda=False)
        policy = DQNPolicy(cfg.policy, model=DQN(**cfg.policy.model))
        task.use(interaction_evaluator(cfg, policy.eval_mode, environments(5)))
        task.use(stop_at_the_goal)
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, environments(8)))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
        task.run()
    return reached["steps"]


def rllib(ours: bool, seed: int, folder: Path) -> int:
    """Train with RLlib's `PrioritizedEpisodeReplayBuffer`, or ours; return the steps at the goal.

    The goal is a mean of the last 20 episodes that were played.
    """
    import ray
    from ray.rllib.algorithms.dqn import DQNConfig

    buffer = {
        "type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4
    }  # fmt: skip
    if ours:
        buffer["type"] = "expdb.integrations.rllib.PrioritizedEpisodeReplayBuffer"
        buffer["location"] = str(folder / "runs.db")
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        ignore_reinit_error=True,
    )  # fmt: skip
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .debugging(seed=seed)
        .reporting(min_sample_timesteps_per_iteration=250, metrics_num_episodes_for_smoothing=20)
        .training(
            lr=0.0005, epsilon=[(0, 1.0), (10_000, 0.02)], replay_buffer_config=buffer,
            num_steps_sampled_before_learning_starts=500, train_batch_size_per_learner=32,
        )
    )  # fmt: skip
    algorithm = config.build_algo()
    steps, returns = 0, deque[float](maxlen=3)
    while steps < MOST and not (len(returns) == 3 and np.mean(returns) >= GOAL):
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        returns.append(float(result["env_runners"].get("episode_return_mean", 0.0)))
    algorithm.stop()
    return steps


def main() -> None:
    """Print the steps of each side and seed."""
    framework = {"di_engine": di_engine, "rllib": rllib}[sys.argv[1]]
    seeds = range(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    logging.disable(logging.WARNING)
    for ours in (False, True):
        scores = []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                scores.append(framework(ours, seed, Path(folder)))
            print(
                sys.argv[1], "ours" if ours else "original", f"seed {seed}", scores[-1], flush=True
            )
        print(sys.argv[1], "ours" if ours else "original", scores, flush=True)


if __name__ == "__main__":
    main()
