"""The consumers of a buffer: their settings and counters."""

import json
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any

import sqlalchemy as sa

from expdb import errors
from expdb.names import nearest
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger.pins import update_pins
from expdb.storage.store import Store
from expdb.storage.stored_json import damaged

K = tables.consumers.c
MAX_LABELLED = 2**31 - 1  # the greatest policy version of the field `versions`


@dataclass(frozen=True)
class Settings:
    """The limits on the leases of a consumer."""

    seed: int
    max_times_sampled: int | None = None
    max_staleness: int | None = None
    min_size: int = 1
    new_only: bool = False

    @classmethod
    def from_text(cls, text: str, name: str) -> "Settings":
        """Parse the JSON in the column `consumers.settings`."""
        try:
            settings = cls(**json.loads(text))
            limits = settings.max_times_sampled, settings.max_staleness
            numbers = settings.seed, settings.min_size, *limits
            if any(type(number) not in (int, NoneType) or (number or 0) < 0 for number in numbers):
                raise ValueError(f"invalid numbers {numbers}")
            return settings
        except (ValueError, TypeError, RecursionError) as error:
            raise damaged(f"the settings of consumer {name!r}", error) from error


@dataclass(frozen=True)
class ConsumerRecord:
    """A stored consumer, with its counters when it was read."""

    id: int
    name: str
    settings: Settings
    began: int
    version: int = 0
    handed_out: int = 0
    begun: int = 0
    acknowledged: int = 0
    last_step: int | None = None
    rewinds: int = 0


_COLUMNS = [K[field.name] for field in fields(ConsumerRecord)]
_COUNTERS = ("began", "version", "handed_out", "begun", "acknowledged")
_MOST = 1 << 62  # exclusive limit of each counter; database integers can be twice as large


def find_consumer(store: Store, session: Session, name: str) -> ConsumerRecord | None:
    """Return the consumer with this name, or None if there is no such consumer."""
    rows = session.query(sa.select(*_COLUMNS).where(K.buffer_id == store.id, K.name == name))
    if not rows:
        return None
    values = dict(rows[0]._mapping)
    values["settings"] = Settings.from_text(values["settings"], name)
    counters = {counter: values[counter] for counter in _COUNTERS}
    if not all(0 <= count < _MOST for count in counters.values()):
        raise damaged(f"consumer {name!r}", f"its counters are {counters}")
    return ConsumerRecord(**values)


def require_consumer(store: Store, session: Session, name: str) -> ConsumerRecord:
    """Return the consumer with this name; raise UnknownConsumer if there is no such consumer."""
    record = find_consumer(store, session, name)
    if record is None:
        raise unknown_consumer(store, session, name)
    return record


def list_consumers(store: Store, session: Session) -> list[str]:
    """Return the names of all consumers of a buffer, oldest first."""
    named = sa.select(K.name).where(K.buffer_id == store.id).order_by(K.id)
    return [name for (name,) in session.query(named)]


def is_dropped(store: Store, session: Session) -> bool:
    """Return whether the buffer was dropped."""
    return not session.query("SELECT 1 FROM buffers WHERE id = ?", store.id)


def unknown_consumer(store: Store, session: Session, name: str) -> errors.ExpDBError:
    """Return the error for a name that no consumer has, or for a dropped buffer."""
    if is_dropped(store, session):
        return store.dropped()
    names = list_consumers(store, session)
    there = f"the consumers are {', '.join(names)}" if names else "the buffer has no consumers"
    return errors.UnknownConsumer(
        f"buffer {store.name!r} has no consumer {name!r}{nearest(name, names) or ';'} {there}"
    )


def open_consumer(store: Store, name: str, requested: dict[str, Any], seed: int) -> ConsumerRecord:
    """Return the consumer with this name; create the consumer if it does not exist.

    Raise ConsumerMismatch if a requested setting differs from the stored one.
    """
    consumer = store.read(find_consumer, name)
    if consumer is None:
        if store.engine.read_only:
            error = store.read(unknown_consumer, name)
            if not isinstance(error, errors.UnknownConsumer):
                raise error
            raise errors.UnknownConsumer(
                f"{error}; open the database without read_only=True to create the consumer"
            )
        with store.writing() as (session, _):
            consumer = find_consumer(store, session, name)
            if consumer is None:  # no other process has created it since the read
                settings = Settings(**{"seed": seed, **requested})
                # Ids are never reused, so leases of a dropped consumer cannot match a new
                # consumer.
                ((id, added, capacity),) = session.query(
                    "UPDATE buffers SET consumers_added = consumers_added + 1 WHERE id = ? "
                    "RETURNING consumers_added, added, capacity",
                    store.id,
                )
                refuse_minimum(store, settings.min_size, capacity)
                consumer = ConsumerRecord(id, name, settings, added)
                values = {**asdict(consumer), "settings": json.dumps(asdict(settings))}
                session.execute(sa.insert(tables.consumers).values(buffer_id=store.id, **values))
    stored = asdict(consumer.settings)
    for key, value in requested.items():
        if stored[key] != value:
            raise errors.ConsumerMismatch(
                f"consumer {name!r} has {key}={stored[key]!r}, got {key}={value!r}; omit {key}, "
                "or use another name"
            )
    return consumer


def refuse_minimum(store: Store, min_size: int, capacity: int | None, of: str = "") -> None:
    """Raise InvalidValue if `min_size` exceeds the capacity: consumers would wait forever."""
    if capacity is not None and min_size > capacity:
        raise errors.InvalidValue(
            f"min_size{of} is {min_size}, but buffer {store.name!r} has a capacity of {capacity} "
            "steps; choose a smaller min_size or a larger capacity"
        )


def drop_consumer(store: Store, name: str) -> None:
    """Delete a consumer and its ledger."""
    with store.engine.writing() as session:
        consumer = find_consumer(store, session, name)
        if consumer is None:
            raise unknown_consumer(store, session, name)
        is_consumer = sa.and_(K.buffer_id == store.id, K.id == consumer.id)
        # Leasing also locks the consumer's row first, so one of the two transactions waits.
        session.execute(sa.delete(tables.consumers).where(is_consumer))
        leases = tables.leases.c
        of_consumer = sa.and_(leases.buffer_id == store.id, leases.consumer == consumer.id)
        session.execute(sa.delete(tables.leases).where(of_consumer))
        update_pins(store, session)


def policy_version(store: Store, session: Session) -> int | None:
    """Return the version of the policy that is being trained, or None if it was never set."""
    version = store.column(session, "policy_version")
    return None if version is None else int(version)


def policy_versions(store: Store, session: Session) -> dict[str, int]:
    """Return the current policy versions of single agents."""
    return parse_versions(store.column(session, "policy_versions"), store.name)


def parse_versions(text: str | None, buffer: str) -> dict[str, int]:
    """Parse the JSON in the column `policy_versions` or `version_labels` of a buffer."""
    try:
        versions: dict[str, int] = {} if text is None else json.loads(text)
        if not all(type(version) is int for version in versions.values()):
            raise ValueError(f"invalid versions {versions}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise damaged(f"the policy versions of buffer {buffer!r}", error) from error
    return versions


def set_agent_version(store: Store, agent_id: str, version: int) -> None:
    """Set the policy version of an agent; raise InvalidValue if the stored one is greater."""
    with store.writing() as (session, _):
        versions = policy_versions(store, session)
        if agent_id not in versions:
            _warn_of_unknown_agent(store, session, agent_id)
        stored = versions.get(agent_id, version)
        if stored > version:
            raise errors.InvalidValue(
                f"the policy version of agent {agent_id!r} must not decrease, got {version} after "
                f"{stored} in buffer {store.name!r}; omit the assignment to continue, or use "
                "another buffer for a new run"
            )
        text = json.dumps({**versions, agent_id: version}, ensure_ascii=False)
        session.execute("UPDATE buffers SET policy_versions = ? WHERE id = ?", text, store.id)


def version_labels(store: Store, session: Session) -> dict[str, int]:
    """Return the policy version of each label."""
    labels = parse_versions(store.column(session, "version_labels"), store.name)
    if not all(0 <= version <= MAX_LABELLED for version in labels.values()):
        raise damaged(f"the version labels of buffer {store.name!r}", f"invalid versions {labels}")
    return labels


def add_version_label(store: Store, label: str, version: int) -> None:
    """Store a label of a policy version; raise InvalidValue if it stands for another version."""
    with store.writing() as (session, _):
        labels = version_labels(store, session)
        if (stored := labels.get(label, version)) != version:
            raise errors.InvalidValue(
                f"label {label!r} stands for policy version {stored} in buffer {store.name!r}, "
                f"got {version}; use another label"
            )
        text = json.dumps({**labels, label: version}, ensure_ascii=False)
        session.execute("UPDATE buffers SET version_labels = ? WHERE id = ?", text, store.id)


def _warn_of_unknown_agent(store: Store, session: Session, agent_id: str) -> None:
    """Warn if no episode or step has this agent, but one has an agent with a similar name."""
    rows = session.query(
        "SELECT agent_id FROM episodes WHERE buffer_id = ? UNION SELECT agent_id FROM steps "
        "WHERE buffer_id = ? AND agent_id IS NOT NULL",
        store.id, store.id,
    )  # fmt: skip
    names = {str(name) for (name,) in rows}
    hint = "" if agent_id in names else nearest(agent_id, names)
    if hint:
        errors.warn(
            f"no step of buffer {store.name!r} has the agent {agent_id!r}{hint} the version "
            "is stored, but applies only to steps of this agent"
        )


def set_policy_version(store: Store, version: int) -> None:
    """Set the policy version in one round trip; raise InvalidValue if the stored one is greater."""
    statement = (
        "UPDATE buffers SET policy_version = ? "
        "WHERE id = ? AND coalesce(policy_version, ?) <= ? RETURNING id"
    )
    with store.engine.writing() as session:
        question = (statement, version, store.id, version, version)
        (rows,) = session.query_all(question, last=True)
    if not rows:
        stored = store.read(policy_version)
        raise errors.InvalidValue(
            f"policy_version must not decrease, got {version} after {stored} in buffer "
            f"{store.name!r}; omit the assignment to continue, or use another buffer for a new run"
        )
