"""A configuration of RLlib's SAC that accepts the buffers of this package."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms import sac


class SACConfig(sac.SACConfig):
    """Extend RLlib's `SACConfig` to accept a buffer of this package as its `"type"`.

    RLlib's `SACConfig` compares the `"type"` with the names of four buffers and rejects any other
    name (`sac.py` of RLlib 2.60). RLlib's DQN accepts any buffer.

    Parameters
    ----------
    algo_class : type, optional
        Argument of RLlib's `SACConfig`.
    """

    def validate(self) -> None:
        """Validate the configuration as RLlib does, with the original buffer of the same name."""
        original: dict[str, Any] = self.replay_buffer_config  # type: ignore[has-type]
        name = str(original["type"])
        if name.startswith(f"{__package__}."):
            self.replay_buffer_config = {**original, "type": name.rpartition(".")[2]}
        try:
            super().validate()
        finally:
            self.replay_buffer_config = original
