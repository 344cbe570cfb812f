"""Test that a DQN pipeline of DI-engine trains on a stored buffer and continues with it."""

import pytest

WHY = "DI-engine is not installed: run `python3 dev.py test --ecosystems`"
pytest.importorskip("ding.framework", reason=WHY)

if True:  # these imports need the package
    import gym
    from ding.config import compile_config
    from ding.envs import BaseEnvManagerV2, DingEnvWrapper
    from ding.framework import task
    from ding.framework.context import OnlineRLContext
    from ding.framework.middleware import (
        StepCollector,
        data_pusher,
        eps_greedy_handler,
        offpolicy_data_fetcher,
        trainer,
    )
    from ding.model import DQN
    from ding.policy import DQNPolicy
    from ding.utils import set_pkg_seed
    from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config

    from expdb.integrations.di_engine import DequeBuffer, PriorityExperienceReplay

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def train(folder, prioritized, iterations):
    """Train, and return the numbers of items before and after, and of training iterations."""
    main_config.exp_name = str(folder / "experiment")
    main_config.policy.priority = main_config.policy.priority_IS_weight = prioritized
    cfg = compile_config(main_config, create_cfg=create_config, auto=True, save_cfg=False)
    buffer = DequeBuffer(size=2000, location=folder / "runs.db")
    if prioritized:
        buffer.use(PriorityExperienceReplay(buffer, IS_weight=True))
    before, losses = buffer.count(), []
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        environments = BaseEnvManagerV2(
            env_fn=[lambda: DingEnvWrapper(gym.make("CartPole-v0")) for _ in range(2)],
            cfg=cfg.env.manager,
        )
        set_pkg_seed(0, use_cuda=False)
        policy = DQNPolicy(cfg.policy, model=DQN(**cfg.policy.model))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, environments))
        task.use(data_pusher(cfg, buffer))
        task.use(offpolicy_data_fetcher(cfg, buffer))
        task.use(trainer(cfg, policy.learn_mode))
        task.use(lambda ctx: losses.append(ctx.train_iter))
        task.run(max_step=iterations)
    after = buffer.count()
    buffer.close()
    return before, after, losses[-1]


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_pipeline_trains_and_continues_with_its_buffer(tmp_path, monkeypatch, prioritized):
    monkeypatch.chdir(tmp_path)
    before, stored, updates = train(tmp_path, prioritized, 20)
    assert before == 0
    assert stored > 100
    assert updates > 10
    before, after, _ = train(tmp_path, prioritized, 5)
    assert before == stored
    assert after > stored
