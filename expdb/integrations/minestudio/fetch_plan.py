"""The result of the last fetch, for all ranks, and the number of uses of each chunk."""

from __future__ import annotations

from typing import Any, TypeAlias

import expdb
from expdb.integrations.minestudio.datatypes import FragmentIndex
from expdb.integrations.positions import first_value

Prepared: TypeAlias = "list[tuple[FragmentIndex, str]]"


class FetchPlan:
    """Store the fragments of the last fetch of a session as one step in the database."""

    def __init__(self, database: expdb.ExperienceDB):
        self._buffer = database.buffer(
            "replay_buffer.plan", capacity=1, fields={"plan": expdb.Field("json")}
        )

    def keep(self, session: str, fragments: Prepared, uses: dict[int, int]) -> None:
        """Store the result of a fetch for other processes, including processes that start later.

        `uses` maps the episode of each chunk to the number of fetches of the chunk.
        """
        self._buffer.store(
            plan={
                "session": session,
                "fragments": [
                    [fragment.worker_uuid, fragment.fid_in_worker, id] for fragment, id in fragments
                ],
                "uses": [list(pair) for pair in uses.items()],
            }
        )

    def clear(self) -> None:
        """Delete the plan, because its fragments may be deleted or are already deleted."""
        self._buffer.clear()

    def fragments(self, session: str | None) -> Prepared:
        """Return the fragments of the last fetch."""
        fragments = self._read(session).get("fragments", [])
        return [(FragmentIndex(worker, number), id) for worker, number, id in fragments]

    def uses(self, session: str | None) -> dict[int, int]:
        """Return a dict from the episode of each chunk to the number of fetches of the chunk."""
        return dict(self._read(session).get("uses", []))

    def _read(self, session: str | None) -> dict[str, Any]:
        plan = first_value(self._buffer, "plan")
        is_current = isinstance(plan, dict) and plan.get("session") == session
        return plan if is_current else {}
