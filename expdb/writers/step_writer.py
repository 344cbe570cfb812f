"""StepWriter: steps of any episodes, gathered and written in chunks."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from expdb import errors
from expdb.names import DEFAULT_TASK, TaskReminder
from expdb.process.locks import locked
from expdb.writers.gathering_writer import GatheringWriter
from expdb.writers.left_open import Unwritten
from expdb.writers.sinks import StepSink


class Whose(NamedTuple):
    """What a step says of its episode."""

    key: tuple[str, str]  # task and agent
    episode_id: str | None
    task_name: str | None
    group_id: str | None
    policy_version: int | None
    episode_tags: Mapping[str, Any] | None


class StepWriter(GatheringWriter):
    """Write steps of any episodes in few transactions; made by `buffer.writer(...)`.

    `append` takes what `ReplayBuffer.store` takes, and gathers; what `flush` has returned is
    durable and visible to everybody. It flushes by itself at the append that reaches a limit, and
    when it is closed, collected or left open at the end of the program. It is for vector
    environments and for loops that store one step at a time: hundreds of steps share a commit.
    Threads may share it.

    >>> with buffer.writer(flush_steps=512) as writer:  # doctest: +SKIP
    ...     for k, (obs, action, reward) in enumerate(steps):
    ...         writer.append(agent_id=f"env-{k}", obs=obs, action=action, reward=reward)
    """

    _sink: StepSink

    def __init__(self, sink: StepSink, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._has_ended = False
        self._task_reminder = TaskReminder()
        super().__init__(sink, flush_steps, flush_bytes, flush_seconds)

    def append(
        self,
        /,  # a field may be called self
        *positional: Any,
        task_id: str = DEFAULT_TASK,
        agent_id: str = "agent",
        task_name: str | None = None,
        step: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        pre_agent: str | None = None,
        execute_time: float | None = None,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        policy_version: int | None = None,
        policy_version_end: int | None = None,
        tags: Mapping[str, Any] | None = None,
        episode_tags: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Add a step; it is durable after the next flush.

        Arguments are those of `ReplayBuffer.store`, and values are copied: the environment may
        write into the same arrays again. Raises as `store` does, and adds nothing then.
        """
        if positional:
            raise errors.InvalidValue(
                f"append() accepts only keyword arguments, got {positional[0]!r}; call "
                "append(obs=..., action=..., reward=...)"
            )
        if task_id is DEFAULT_TASK:
            if warning := self._task_reminder.count_step(task_id, terminated or truncated):
                errors.warn(warning)
            task_id = "default"
        whose = Whose(
            (task_id, agent_id), episode_id, task_name, group_id, policy_version, episode_tags
        )
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end,
        )  # fmt: skip
        if self._pid != os.getpid():  # before the lock, which another thread had at the fork
            self._refuse()
        with self._lock: self._append(whose, fields, columns)  # fmt: skip

    def extend(self, columns: Any) -> None:
        """Add many steps given as columns: sequences or arrays [steps, ...] of one length.

        What `store_batch` takes will do. All or none are added: raises as `store` does, and adds
        nothing then. Arrays of fields that are known cost a fraction of as many calls of `append`.

        >>> writer.extend({"agent_id": names, "obs": obs, "action": actions})  # doctest: +SKIP
        """
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._extend, columns)

    def _extend(self, columns: Any) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather_many(columns, self._steps)
        self._flush_if_due()

    def _append(self, whose: Whose, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather(whose, fields, columns, self._steps)
        self._flush_if_due()

    def close(self) -> None:
        """Flush, and complete the episodes that were begun without an `episode_id`."""
        self._finish("complete")

    def _finish(self, status: str) -> None:
        if self._pid == os.getpid():
            locked(self._lock, self._close, status)

    def _close(self, status: str) -> None:
        if not self._has_ended:
            self._flush()
            self._sink.end_all(status)
            self._has_ended = True

    @property
    def _is_closed(self) -> bool:
        return self._has_ended

    def _end_left_open(self) -> Unwritten | None:
        if not self.is_open:
            return None
        try:
            self._close("aborted")
        except Exception as error:
            self._has_ended = True
            return Unwritten(self.unwritten, error) if self.unwritten else None
        return None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this writer belongs to the parent process: make another one here"
            )
        raise errors.InvalidValue("the writer is closed: make another one with buffer.writer")

    def __enter__(self) -> "StepWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:  # maybe from the garbage collector, in the midst of anything
            return self._sink.collected(self)
        self._finish("complete" if kind is None else "aborted")
