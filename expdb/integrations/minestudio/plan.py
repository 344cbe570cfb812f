"""What the last fetch has returned, for all ranks, and how often chunks were used."""

from __future__ import annotations

from typing import Any, TypeAlias

import expdb
from expdb.integrations.minestudio.datatypes import FragmentIndex

Prepared: TypeAlias = "list[tuple[FragmentIndex, str]]"


class Plan:
    """One row of a database: the fragments of the last fetch, of its session alone."""

    def __init__(self, database: expdb.ExperienceDB):
        self._buffer = database.buffer(
            "replay_buffer.plan", capacity=1, fields={"plan": expdb.Field("json")}
        )

    def keep(self, session: str, fragments: Prepared, uses: dict[int, int]) -> None:
        """Have other processes, and those that come later, know of a fetch.

        `uses` says how often chunks were fetched, by their episode.
        """
        self._buffer.store(
            plan={
                "session": session,
                "fragments": [[one.worker_uuid, one.fid_in_worker, id] for one, id in fragments],
                "uses": [list(one) for one in uses.items()],
            }
        )

    def clear(self) -> None:
        """Have no plan: what it names is gone, or may go."""
        self._buffer.clear()

    def fragments(self, session: str | None) -> Prepared:
        """Return what was fetched last."""
        found = self._read(session).get("fragments", [])
        return [(FragmentIndex(worker, number), id) for worker, number, id in found]

    def uses(self, session: str | None) -> dict[int, int]:
        """Return how often chunks were fetched, by their episode."""
        return dict(self._read(session).get("uses", []))

    def _read(self, session: str | None) -> dict[str, Any]:
        page = self._buffer.page(1, 1)
        plan = page[0]["plan"] if page else {}
        is_current = isinstance(plan, dict) and plan.get("session") == session
        return plan if is_current else {}
