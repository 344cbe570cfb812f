"""RLlib's SAC, whose configuration takes the buffers of this package."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms import sac


class SACConfig(sac.SACConfig):
    """RLlib's `SACConfig`, which takes a buffer of this package as its `"type"` too.

    RLlib's own compares the name with a list of its four buffers, and refuses any other
    (`sac.py` of RLlib 2.60); its DQN takes any.
    """

    def validate(self) -> None:
        """Validate everything as RLlib does, the buffer as the one that it stands for."""
        given: dict[str, Any] = self.replay_buffer_config  # type: ignore[has-type]
        name = str(given["type"])
        if name.startswith(f"{__package__}."):
            self.replay_buffer_config = {**given, "type": name.rpartition(".")[2]}
        try:
            super().validate()
        finally:
            self.replay_buffer_config = given
