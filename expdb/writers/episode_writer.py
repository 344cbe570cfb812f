"""EpisodeWriter: one episode's steps, gathered and written in chunks."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

from expdb import errors
from expdb.process.locks import locked
from expdb.writers.gathering_writer import GatheringWriter
from expdb.writers.left_open import LeftOpen
from expdb.writers.sinks import EpisodeSink


class EpisodeWriter(GatheringWriter):
    """Write one new episode; made by `buffer.episode(...)`, used with `with`.

    `append` gathers steps, and flushes at a limit; what `flush` or the end of the block has
    returned is durable. Leaving the block completes the episode; an exception in it flushes what
    was appended and marks the episode aborted, as `abort` does. A writer that is left open is
    flushed when the database is closed, the program exits or the writer is collected, and its
    episode marked aborted, or complete where its last step says so; with an ExpDBWarning.

    >>> with buffer.episode("CartPole-v1/17") as episode:  # doctest: +SKIP
    ...     episode.append(obs=obs, action=action, reward=reward, terminated=terminated)
    ...     episode.end(obs=last_obs)
    """

    _begun_at = ("?", 0)  # before it was made, too: that may be interrupted

    _sink: EpisodeSink

    def __init__(
        self,
        sink: EpisodeSink,
        episode: Any,
        flush_steps: int,
        flush_bytes: int,
        flush_seconds: float,
    ):
        self._episode = episode
        self._takes_steps = True
        self._whole = False  # whether the last step ends the episode
        self._last: Any = None  # what is, or was to be, the write that ends the episode
        self._given_up = self._in_block = False
        super().__init__(sink, flush_steps, flush_bytes, flush_seconds)
        frame, _ = errors.calling_frame()
        # Put together only where it is told.
        self._begun_at = (
            frame.f_code.co_filename,
            frame.f_lineno,
        )

    @property
    def begun_at(self) -> str:
        """Where in the program the episode was begun, "file:line"."""
        return f"{self._begun_at[0]}:{self._begun_at[1]}"

    @property
    def is_whole(self) -> bool:
        """Whether the last step that was appended ends the episode: by terminated or truncated."""
        return self._whole

    @property
    def episode_id(self) -> str:
        """The name of the episode, unique in the buffer."""
        return str(self._episode.episode_id)

    def append(
        self,
        /,  # a field may be called self
        *positional: Any,
        step: int | None = None,
        pre_agent: str | None = None,
        execute_time: float | None = None,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        tags: Mapping[str, Any] | None = None,
        policy_version: int | None = None,
        policy_version_end: int | None = None,
        **fields: Any,
    ) -> None:
        """Add a step; it is durable after the next flush.

        Arguments and errors as of `ReplayBuffer.store`.

        Values are copied: the environment may write into the same arrays again.
        """
        if positional:
            raise errors.InvalidValue(
                f"append() accepts only keyword arguments, got {positional[0]!r}; call "
                "append(obs=..., action=..., reward=...)"
            )
        if self._pid != os.getpid():
            self._refuse()
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end,
        )  # fmt: skip
        with self._lock: self._append(fields, columns)  # fmt: skip

    def _append(self, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if not self._takes_steps:
            self._resume()
        if self._steps.add(self._episode, fields, columns):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def extend(self, columns: Any) -> None:
        """Add many steps given as columns: sequences or arrays [steps, ...] of one length.

        Scalars are broadcast, and what `store_batch` takes will do. All or none are added: raises
        as `append` does, and adds nothing then. Arrays of fields that are known cost a fraction of
        as many calls of `append`.

        >>> episode.extend({"obs": obs, "action": actions, "reward": rewards})  # doctest: +SKIP
        """
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._extend, columns)

    def _extend(self, columns: Any) -> None:
        if not self._takes_steps:
            self._resume()
        if self._sink.gather_many(self._episode, columns, self._steps):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def end(self, **last: Any) -> None:
        """Complete the episode, keeping the observation after its last step.

        It becomes `next_<field>` of that step.
        """
        self._close("complete", last)

    def abort(self, **last: Any) -> None:
        """Flush, and mark the episode aborted.

        What it came to is kept, where given, as by `end`.
        """
        self._close("aborted", last)

    def _close(self, status: str, last: Mapping[str, Any]) -> None:
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._end, status, last)

    def _end(self, status: str, last: Mapping[str, Any]) -> None:
        if self._is_closed:
            self._refuse()
        self._write_in_doubt()
        if not self._is_closed:  # else it was an earlier end that was in doubt
            self._write_end(status, last)

    def _write_end(self, status: str, last: Mapping[str, Any]) -> None:
        steps = self._steps
        try:
            if last:
                if not len(steps) and self._episode.id is None:
                    raise errors.InvalidValue(
                        "end() of an episode without a step: append one first"
                    )
                steps.add_final(last)
            steps.end(self._episode, status)
            self._takes_steps, self._last = False, steps
            self._write()
        except BaseException:
            if not steps.is_stored and not steps.is_in_doubt:
                steps.take_back_end()
                self._last, self._takes_steps = None, not self._whole
            raise

    def _resume(self) -> None:
        """Take steps again after an end() that was interrupted before anything was written.

        Raise EpisodeEnded after any other.
        """
        if self._whole or self._is_closed or self._in_doubt is not None or self._last is None:
            self._refuse()
        self._steps.take_back_end()
        self._last, self._takes_steps = None, True

    @property
    def _is_closed(self) -> bool:
        """Whether the episode has ended."""
        return self._given_up or (self._last is not None and self._last.is_stored)

    @property
    def length(self) -> int:
        """How many steps the episode has, those included that are not written yet."""
        return int(self._episode.length) + self.unwritten

    @property
    def unwritten(self) -> int:
        """How many steps were appended and are not known to be written."""
        return 0 if self._given_up else super().unwritten

    def _end_left_open(self) -> LeftOpen | None:
        # Complete where its last step says so, else aborted. Steps that cannot be written are
        # given up.
        if not self.is_open:
            return None
        left = LeftOpen(
            self.episode_id,
            self.begun_at,
            "complete" if self._whole else "aborted",
            self.unwritten,
            self.length,
            self._in_block,
        )
        try:
            self._end(left.status, {})
        except Exception as error:
            self._given_up, self._takes_steps = True, False
            return left._replace(error=error)
        return left if left.length else None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this episode belongs to the parent process: begin another one here"
            )
        raise errors.EpisodeEnded(
            f"episode {self.episode_id!r} has ended: begin another one with buffer.episode"
        )

    def __enter__(self) -> "EpisodeWriter":
        self._in_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if kind is GeneratorExit:  # maybe from the garbage collector, in the midst of anything
            return self._sink.collected(self)
        self._close("complete" if kind is None else "aborted", {})
