"""Train an algorithm of RLlib, and continue its training from a checkpoint."""


def train_and_resume(config, folder, size, **options):
    """Train for an iteration, and continue with the checkpoint and the stored buffer.

    `config` returns a new configuration, and `size` the number of steps in a buffer.
    """

    def algorithm():
        return (
            config()
            .env_runners(num_env_runners=0, rollout_fragment_length=10)
            .learners(num_learners=0)
            .reporting(min_sample_timesteps_per_iteration=60, min_time_s_per_iteration=None)
            .training(
                replay_buffer_config={
                    "capacity": 5000, "location": str(folder / "runs.db"), **options,
                },
                num_steps_sampled_before_learning_starts=40, train_batch_size_per_learner=16,
            )
            .build_algo()
        )  # fmt: skip

    first = algorithm()
    first.train()
    stored = size(first.local_replay_buffer)
    assert stored >= 60
    path = first.save_to_path(str(folder / "checkpoint"))
    first.stop()
    again = algorithm()
    again.restore_from_path(path)
    assert size(again.local_replay_buffer) == stored
    again.train()
    assert size(again.local_replay_buffer) > stored
    again.stop()
