"""Drawing from what is not in memory yet: single steps of all, uniformly."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.batch import Batch
from expdb.replay.population import Window
from expdb.replay.samplers import Uniform
from expdb.replay.units import Step
from expdb.sampling.candidates import Wanted
from expdb.sql.session import Session
from expdb.storage.reading import fetch, select
from expdb.storage.store import State, Store


def is_plain(wanted: Wanted) -> bool:
    """Return whether a sample needs nothing but positions: single steps, uniformly, of all."""
    plain = wanted.sampler == Uniform() and wanted.unit == Step()
    return plain and wanted.where is None and wanted.shard is None and wanted.limits is None


def drawn_unloaded(store: Store, session: Session, state: State, wanted: Wanted) -> Batch:
    """Draw plain steps, and read them."""

    def held(positions: np.ndarray) -> np.ndarray:
        return fetch.alive(store, session, positions)

    allowed = None if state.size == state.added - state.oldest else held
    window = Window(
        state.oldest, state.added, allowed, lambda: select.positions(store, session, None)
    )
    positions = window.draw(wanted.size, True, wanted.rng)
    found = fetch.steps(store, session, state, positions, wanted.fields, last=True)
    return Batch(found, wanted.size)
