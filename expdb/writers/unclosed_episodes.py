"""Warnings about writers that a program leaves open."""

from typing import NamedTuple


class UnclosedEpisode(NamedTuple):
    """The state of an episode that the program never ended."""

    episode_id: str
    begun_at: str
    status: str
    unwritten: int  # steps that were not written when the episode was left open
    length: int
    in_block: bool  # whether the writer was used in a `with` statement
    error: Exception | None = None  # why the unwritten steps are lost

    def message(self, buffer: str) -> str:
        """Return the text of the warning."""
        what = (
            f"episode {self.episode_id!r} of buffer {buffer!r}, begun at {self.begun_at}, was "
            "never ended"
        )
        cure = (
            "let its `with` block end before the program exits"
            if self.in_block
            else "use `with buffer.episode(...)`, or call end()"
        )
        if self.error is not None:
            return (
                f"{what}: {self.unwritten} of its {self.length} steps are lost ({self.error}); "
                f"{cure}"
            )
        if self.unwritten:
            return (
                f"{what}: it is marked {self.status}, and {self.unwritten} of its {self.length} "
                f"steps are written only now; {cure}"
            )
        return (
            f"{what}: it is marked {self.status}; its {self.length} steps were already written; "
            f"{cure}"
        )


class LostSteps(NamedTuple):
    """The steps that a writer could not write when it was closed."""

    unwritten: int
    error: Exception | None

    def message(self, buffer: str) -> str:
        """Return the text of the warning."""
        return (
            f"{self.unwritten} steps that were appended to buffer {buffer!r} are lost "
            f"({self.error}); call flush() or close() where the error can be handled"
        )
