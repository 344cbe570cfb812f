"""Tests of PostgreSQL: lost connections, restarts, access rights, round trips and attacks."""

import itertools
import multiprocessing
import pickle
import random
import re
import shutil
import signal
import subprocess
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from behind import engine_of, reading, writing
from postgres_server import Server
from proxy import Proxy

import expdb
from expdb import errors
from expdb.sql.dialects.postgresql import connection
from expdb.sql.dialects.postgresql.engine import PostgresqlSession
from expdb.storage.ledger import consumers
from expdb.storage.writing import change

FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
OBS = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def server():
    """Yield a separate server that the tests of this file can stop and start."""
    own_server = Server(deadlock_timeout="100ms")
    yield own_server
    own_server.remove()


@pytest.fixture
def url(server):
    name = server.database()
    yield server.url(name)
    with expdb.open(server.url(name)) as db:
        assert db.check() == []
    server.drop(name)


@pytest.fixture
def proxy(server):
    with Proxy(f"{server.folder}/.s.PGSQL.5432") as running:
        yield running


def numbers(url):
    with expdb.open(url) as db:
        return [
            n for batch in db.buffer("b").scan(fields=["number"]) for n in batch["number"].tolist()
        ]


def step(number):
    return {"number": number, "obs": OBS, "reward": 1.0}


# -- commits with an unknown outcome ---------------------------------------------------------------


def in_single_steps(buffer):
    return [buffer.store(**step(9))]


def in_a_batch(buffer):
    return buffer.store_batch([step(k) for k in range(9, 12)]).tolist()


def with_a_new_field(buffer):
    return [buffer.store(**step(9), new=1)]


def by_copy(buffer):
    return buffer.store_batch(
        {"number": np.arange(9, 6009), "obs": np.zeros((6000, 4), np.float32)}
    ).tolist()


def in_an_episode(buffer):
    with buffer.episode("e") as episode:
        for k in range(9, 12):
            episode.append(**step(k))
        positions = episode.flush().tolist()
        episode.append(**step(12))
    return [*positions, positions[-1] + 1]


@pytest.mark.parametrize(
    "write", [in_single_steps, in_a_batch, with_a_new_field, by_copy, in_an_episode]
)
@pytest.mark.parametrize(
    "trip", [1, *(pytest.param(trip, marks=pytest.mark.slow) for trip in (0, 2, 3))]
)
def test_a_lost_response_does_not_repeat_a_write(url, proxy, write, trip):
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")
        buffer.store_batch([step(k) for k in range(9)])
        counted = threading.Thread(target=swallow_after, args=(proxy, trip))
        counted.start()
        positions = write(buffer)
        counted.join()
        proxy.swallow = False
        assert positions == list(range(9, 9 + len(positions)))
        assert buffer.store(number=7777) == positions[-1] + 1
    assert numbers(url) == [*range(positions[-1] + 1), 7777]


def swallow_after(proxy, trips):
    """Drop the response after `trips` more round trips, if there is one."""
    proxy.trips, deadline = 0, time.monotonic() + 1.0
    while proxy.trips < trips and time.monotonic() < deadline:
        time.sleep(0.0005)
    proxy.swallow = True


@pytest.mark.slow
def test_connections_cut_at_any_byte_neither_lose_nor_repeat_steps(url, proxy):
    rng = random.Random(7)
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")
        buffer.store(**step(0))
        done = 1
        for k in range(60):
            proxy.cut_after_bytes = rng.randrange(1, 6000)
            if k % 3 == 0:
                with buffer.episode(f"e{k}", flush_steps=5) as episode:
                    for _ in range(12):
                        episode.append(**step(done))
                        done += 1
            elif k % 3 == 1:
                buffer.store_batch([step(done + n) for n in range(7)])
                done += 7
            else:
                buffer.store(**step(done))
                done += 1
    stored = numbers(url)
    assert sorted(stored) == list(range(done))
    assert stored == list(range(done))


# -- restarts --------------------------------------------------------------------------------------


def test_a_restart_rolls_back_a_transaction_and_raises_connection_lost(server, url):
    with expdb.open(url) as db:
        buffer = db.buffer("b")
        buffer.store_batch([step(k) for k in range(5)])

        def interrupted(context, statement):
            with context as session:
                session.query(statement)
                server.stop()
                server.start()
                session.query(statement)

        with pytest.raises(errors.ConnectionLost) as caught:
            interrupted(writing(db), "UPDATE steps SET reward = 100")
        assert "\n" not in str(caught.value)
        assert buffer.get([0, 1])["reward"].tolist() == [1.0, 1.0]
        with pytest.raises(errors.ConnectionLost):
            interrupted(reading(db), "SELECT 1")
        assert buffer.update({"position": 0}, reward=7.0) == 1


@pytest.mark.parametrize("restarts", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_actors_learners_judges_and_admissions_survive_restarts(server, url, restarts):
    """Each rollout is stored once and trained once, and no thread ends by an error."""
    trained, stored, done = [], [], threading.Event()
    ready = threading.Barrier(6)  # open all handles first, because opening fails during a restart

    def act(actor):
        with expdb.open(url) as db:
            buffer = db.buffer("train")
            ready.wait()
            for number in itertools.count():
                if done.is_set():
                    return
                with buffer.admit(wait=60.0) as group:
                    name = f"{actor}/{number}"
                    buffer.store(
                        task_id="t", episode_id=name, x=number, truncated=True,
                        policy_version=group.policy_version,
                    )  # fmt: skip
                stored.append(name)
                buffer.count()
                buffer.sample(4)

    def learn(_):
        with expdb.open(url) as db:
            buffer = db.buffer("train")
            consumer = buffer.consumer("trainer", max_times_sampled=1)
            ready.wait()
            while not done.is_set():
                try:
                    lease = consumer.lease(2, fields=["episode_id"], wait=0.2)
                except expdb.TooFewRows:
                    continue
                lease.acknowledge()
                trained.extend(lease.batch["episode_id"].tolist())
                buffer.policy_version = (buffer.policy_version or 0) + 0

    def judge(_):
        with expdb.open(url) as db:
            buffer = db.buffer("train")
            ready.wait()
            while not done.is_set():
                buffer.update({"task_id": "t"}, **{"tags.judge": 1})
                time.sleep(0.01)

    with expdb.open(url) as db:
        buffer = db.buffer("train")
        buffer.policy_version = 0
        buffer.pace = expdb.Pace(0, 10**9)
        buffer.store(task_id="t", episode_id="first", x=0, truncated=True, policy_version=0)
    with ThreadPoolExecutor(5) as pool:
        works = [(act, 0), (act, 1), (learn, 0), (learn, 1), (judge, 0)]
        works = [pool.submit(*work) for work in works]
        ready.wait(60)
        for k in range(restarts):
            time.sleep(1.0)
            server.stop(signal.SIGQUIT if k % 2 else signal.SIGINT)
            server.start()
        time.sleep(1.0)
        done.set()
        assert [work.exception(60) for work in works] == [None] * 5
    assert len(trained) == len(set(trained)) > 0
    with expdb.open(url) as db:
        buffer = db.buffer("train")
        stored_ids = buffer.episodes()["episode_id"].to_pylist()
        assert len(stored_ids) == len(set(stored_ids))
        assert set(stored) <= set(stored_ids)
        rest = buffer.consumer("trainer")
        while len(trained) < len(stored_ids):
            with rest.lease(2, fields=["episode_id"], at_least=1) as batch:
                trained.extend(batch["episode_id"].tolist())
        assert sorted(trained) == sorted(stored_ids)
        assert db.check() == []


REPEATED = {
    "count": lambda db, buffer: buffer.count({"position": 1}),
    "len": lambda db, buffer: len(buffer),
    "get": lambda db, buffer: buffer.get([0, 1])["number"].tolist(),
    "tasks": lambda db, buffer: buffer.tasks(),
    "episodes": lambda db, buffer: buffer.episodes()["task_id"].to_pylist(),
    "stats": lambda db, buffer: buffer.stats()["steps"],
    "check": lambda db, buffer: db.check(),
    "eviction": lambda db, buffer: (buffer.eviction, len(buffer.plan_eviction())),
    "sample tasks": lambda db, buffer: buffer.sample_tasks(1, seed=0)["t"]["number"].tolist(),
    "why": lambda db, buffer: len(buffer.why(3)),
    "waiting": lambda db, buffer: buffer.waiting().to_pylist(),
    "replay": lambda db, buffer: [batch["number"].tolist() for batch in buffer.replay("old")],
    "sample": lambda db, buffer: buffer.sample(100, seed=0)["number"].max(),
    "sql": lambda db, buffer: db.sql("SELECT count(*) AS n FROM experience")["n"].to_pylist(),
    "buffer": lambda db, buffer: db.buffer("b", capacity=100).capacity,
    "buffers": lambda db, buffer: db.buffers(),
    "consumer": lambda db, buffer: buffer.consumer("new", max_times_sampled=2).name,
    "consumers": lambda db, buffer: buffer.consumers(),
    "set the version": lambda db, buffer: setattr(buffer, "policy_version", 3),
    "version": lambda db, buffer: buffer.policy_version,
    "set the pace": lambda db, buffer: setattr(buffer, "pace", expdb.Pace(1, 100)),
    "pace": lambda db, buffer: buffer.pace,
    "limit": lambda db, buffer: setattr(buffer, "rate_limiter", expdb.MinSize(1)),
    "limiter": lambda db, buffer: buffer.rate_limiter,
    "set the capacity": lambda db, buffer: setattr(buffer, "capacity", 50),
    "update": lambda db, buffer: buffer.update({"position": 2}, reward=5.0),
    "store": lambda db, buffer: int(buffer.store(task_id="t", number=9)) > 0,
}
# These operations cannot be repeated: a commit with an unknown outcome is an error.
ONCE = {
    "end": lambda db, buffer: buffer.end_episode("named"),
    "delete": lambda db, buffer: buffer.delete({"position": 4}),
    "clear": lambda db, buffer: buffer.clear(),
}


def new_filled_buffer(db):
    if "b" in db.buffers():
        db.drop("b")
    buffer = db.buffer("b", capacity=60)
    buffer.store_batch([{"task_id": "t", **step(k)} for k in range(5)])
    buffer.policy_version = 1
    buffer.store(task_id="t", episode_id="named", number=5)
    with buffer.consumer("old", seed=1).lease(2):
        pass
    return buffer


QUICK = ("sample", "store", "update", "end", "delete")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (*REPEATED, *ONCE)
    ],
)
def test_operations_survive_a_lost_connection(url, proxy, name):
    """Cut the connection at each message of the operation in turn."""
    work = {**REPEATED, **ONCE}[name]
    with expdb.open(url) as db:
        expected = work(db, new_filled_buffer(db))
        for cut_at in itertools.count(1):
            new_filled_buffer(db)
            with expdb.open(proxy.url(url)) as other:
                buffer = other.buffer("b")
                len(buffer)
                proxy.swallow_after = cut_at
                try:
                    assert work(other, buffer) == expected
                except errors.CommitUnknown:
                    assert name in ONCE
                was_cut, proxy.swallow_after = proxy.swallow_after is None, None
            if not was_cut:
                break
        assert cut_at > 1


def test_opening_survives_a_lost_connection(url, proxy):
    expdb.open(url).close()
    for cut_at in range(2, 8):
        proxy.swallow_after = cut_at
        expdb.open(proxy.url(url)).close()


@pytest.mark.parametrize("cut_at", range(1, 5))
def test_closing_completes_episodes_despite_a_lost_connection(url, proxy, cut_at):
    with expdb.open(proxy.url(url)) as db:
        for k in range(3):
            db.buffer("b").store(**step(k))
        proxy.swallow_after = cut_at
    with expdb.open(url) as db:
        assert db.buffer("b").episodes()["status"].to_pylist() == ["complete"]


def test_an_unavailable_server_is_an_error_after_the_timeout(url, proxy):
    with expdb.open(proxy.url(url), timeout=1.5) as db:
        buffer = db.buffer("b")
        buffer.store(**step(0))
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(errors.CommitUnknown, match="write_id") as caught:
            buffer.store(**step(1))
        with pytest.raises(errors.ConnectionLost, match="check host and port"):
            buffer.sample(1)
        assert "\n" not in str(caught.value)
        proxy.refuse = False
        assert buffer.store(**step(1)) == 1


# -- access ----------------------------------------------------------------------------------------


def refused(kind, cure, location, **options):
    with pytest.raises(kind, match=cure) as caught:
        expdb.open(location, **options)
    assert "\n" not in str(caught.value)
    trace = "".join(traceback.format_exception(caught.value))
    assert "secret" not in trace.replace(location, "")
    if "GRANT" not in cure:  # the connection failed; an error of the driver has a hundred lines
        assert "psycopg" not in trace


def test_errors_for_an_unreachable_server_hide_the_password(proxy, url):
    proxy.silent = True
    for location in (
        "postgresql://u:secret@127.0.0.1:1/db", "postgresql://u:secret@no-such-host.invalid/db",
        "postgresql://u@127.0.0.1:1/db?password=secret", proxy.url(url),
    ):  # fmt: skip
        refused(errors.ConnectionLost, "host and port", location, timeout=0.5)


def test_wrong_credentials_and_missing_rights_are_refused(server, url):
    server.execute("CREATE ROLE needs_password LOGIN PASSWORD 'right'")
    try:
        wrong = url.replace("expdb@", "needs_password:secret@")
        refused(errors.AccessDenied, "check user and password", wrong)
        refused(
            errors.AccessDenied,
            "check user and password",
            url.replace("expdb@", "nobody_known@"),
        )
        refused(errors.DatabaseMissing, "createdb", re.sub(r"@/\w+", "@/no_such_database", url))
        # The role can connect, but has no right to create the schema or to read it.
        right = url.replace("expdb@", "needs_password:right@")
        refused(errors.AccessDenied, "expdb grant|GRANT", right)
        expdb.open(url).close()
        refused(errors.AccessDenied, "expdb grant|GRANT", right)
    finally:
        server.execute("DROP ROLE needs_password")


def test_a_schema_of_another_application_is_refused_and_not_modified(server):
    name = server.database()
    server.execute("CREATE SCHEMA expdb", name)
    server.execute("CREATE TABLE expdb.buffers (theirs int)", name)
    server.execute("CREATE TABLE public.steps (theirs int)", name)
    refused(errors.NotAnExperienceDatabase, "another database", server.url(name))
    server.execute("DROP TABLE expdb.buffers", name)
    with expdb.open(
        server.url(name)
    ) as db:  # the schema of an administrator is empty, and `public` has foreign tables
        db.buffer("b").store(x=1)
        assert db.check() == []
    assert server.execute("SELECT count(*) FROM public.steps", name) == [(0,)]
    server.drop(name)


def test_create_false_and_read_only_do_not_create_a_missing_schema(server):
    name = server.database()
    refused(errors.DatabaseMissing, r"create it with expdb\.open", server.url(name), create=False)
    refused(errors.DatabaseMissing, "schema expdb", server.url(name), read_only=True)
    assert server.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'expdb'", name) == [
        (0,)
    ]
    server.drop(name)


def test_old_servers_and_encodings_other_than_utf8_are_refused(server, url, monkeypatch):
    server.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'SQL_ASCII'")
    refused(errors.NotAnExperienceDatabase, "UTF8", server.url("latin"))
    server.execute("DROP DATABASE latin")
    monkeypatch.setattr(connection, "MINIMUM_VERSION", 990_000)
    refused(errors.ServerTooOld, "99 or newer", url)
    monkeypatch.undo()
    expdb.open(url).close()


def test_waiting_too_long_for_a_row_lock_raises_database_busy(url):
    with expdb.open(url, timeout=0.3) as db, expdb.open(url) as other:
        buffer = db.buffer("b")
        buffer.store(**step(0))
        with writing(other) as session:
            session.query("SELECT id FROM buffers FOR UPDATE")
            with pytest.raises(errors.DatabaseBusy, match="longer timeout"):
                buffer.store(**step(1))
            with pytest.raises(errors.DatabaseBusy, match="longer timeout"):
                buffer.update({"position": 0}, reward=2.0)
            assert buffer.sample(3).size == 3
        assert buffer.store(**step(1)) == 1


# -- round trips -----------------------------------------------------------------------------------


def test_operations_take_few_round_trips(url, proxy, monkeypatch):
    monkeypatch.setattr("expdb.archive.retention.LOOK_SECONDS", 1000.0)
    monkeypatch.setattr("expdb.storage.upkeep.reporting.FIRST_REPORT_SECONDS", 1000.0)
    with expdb.open(url) as db:
        db.buffer("b").store_batch(
            {
                "obs": np.zeros((5000, 4), np.float32),
                "reward": np.ones(5000),
                "number": np.arange(5000),
            }
        )
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")

        def trips(call):
            proxy.trips = 0
            call()
            return proxy.trips

        assert trips(lambda: buffer.sample(256)) <= 2  # nothing is cached yet
        buffer.sample(256, unit=expdb.NStep(1))  # loads everything
        assert max(trips(lambda: buffer.sample(256)) for _ in range(20)) <= 2
        time.sleep(0.11)  # longer than max_lag
        assert trips(lambda: buffer.sample(256)) == 2
        assert min(trips(lambda: buffer.sample(256)) for _ in range(5)) == 0
        without_fields = db.buffer("without fields")
        for other, row in ((buffer, step(0)), (without_fields, {"task_id": "t"})):
            other.store(**row)
            assert trips(lambda other=other, row=row: other.store(**row)) == 1
        assert trips(lambda: buffer.store_batch([step(0)] * 64)) == 1
        consumer, leases = buffer.consumer("learner"), []
        for _ in range(2):  # the first lease also stores its request
            most = trips(lambda: leases.append(consumer.lease(32)))
        assert most <= 4
        assert trips(lambda: leases[0].acknowledge()) == 1
        with pytest.raises(expdb.LeaseLost, match="already acknowledged"):
            leases[0].acknowledge()
        buffer.policy_version = 0
        assert trips(lambda: setattr(buffer, "policy_version", 1)) == 1
        with pytest.raises(expdb.InvalidValue, match="got 0 after 1"):
            buffer.policy_version = 0
        rewards = iter(range(10))

        def reward_late():
            assert buffer.update(np.array([3]), reward=float(next(rewards))) == 1

        assert [trips(reward_late) for _ in range(2)] == [2, 2]

        def begin_and_finish():
            buffer.admit(wait=0).finish()

        assert trips(begin_and_finish) == 1
        buffer.pace = expdb.Pace(max_staleness=1, groups_per_version=2)
        buffer.admit(wait=0).finish()  # reads the pace; the next admit() reuses the limit
        assert trips(begin_and_finish) == 2
        batches = consumer.batches(32)
        next(batches)
        assert trips(lambda: next(batches)) == 4
        lease, other = consumer.lease(32, pin=True), db.buffer("b").consumer("learner")
        assert trips(lambda: other.shared(lease.id)) == 3


def test_many_new_episodes_take_few_round_trips(url, proxy):
    count = 5000  # more than one statement can write
    ended, opened = (
        {"episode_id": [f"{kind}{k}" for k in range(count)], "obs": np.zeros((count, 2)),
         "terminated": np.full(count, kind == "e")}
        for kind in "eo"
    )  # fmt: skip
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")  # the first write also stores the fields
        for columns in (ended, opened):
            proxy.trips = 0
            buffer.store_batch(columns)
            assert proxy.trips < 200


def test_a_corrupted_chunk_is_not_read_from_the_cache(url):
    with expdb.open(url) as db:
        buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
        buffer.store(episode_id="e", prompt_ids=[1], output_ids=[2], terminated=True)
        assert buffer.sample(1, unit=expdb.Tokens())["input_ids"].tolist() == [[1, 2]]
        with writing(db) as session:
            session.execute("UPDATE chunks SET data = ''::bytea, crc = crc + 1")
        with pytest.raises(errors.ChunkDamaged):
            buffer.sample(1, unit=expdb.Tokens())
        buffer.delete({"episode_id": "e"})


@pytest.mark.parametrize("trips", [1, 2, 3])
def test_a_lost_response_does_not_repeat_commits_of_one_round_trip(url, proxy, trips):
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")
        buffer.store_batch([step(k) for k in range(20)])
        buffer.policy_version = 0
        buffer.pace = expdb.Pace(max_staleness=1, groups_per_version=5)
        groups = [buffer.admit(wait=0), buffer.admit(wait=0)]
        finished, cancelled = groups
        consumer = buffer.consumer("learner")
        lease = consumer.lease(2)
        for act in (
            lambda: groups.append(buffer.admit(wait=0)),
            lambda: groups[-1].finish(),
            finished.finish,
            cancelled.cancel,
            lease.acknowledge,
            lambda: setattr(buffer, "policy_version", 1),
        ):
            proxy.swallow_after = trips
            act()
            proxy.swallow_after = None
        with reading(db) as session:
            assert session.query("SELECT admitted FROM buffers") == [(2,)]
            assert session.query("SELECT count(*) FROM admissions") == [(0,)]
        assert consumer.stats()["acknowledged"] == 1
        assert buffer.policy_version == 1
        batches = consumer.batches(2, pin=True)
        next(batches)
        for _ in range(3):
            proxy.swallow_after = trips + 4
            next(batches)
            proxy.swallow_after = None
        assert consumer.stats()["acknowledged"] == 4


@pytest.mark.parametrize("has_statistics", [False, True])
def test_late_rewards_read_only_the_steps_of_their_episodes(url, server, has_statistics):
    name = url.partition("?")[0].rpartition("/")[2]
    read = (
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables "
        "WHERE schemaname = 'expdb' AND relname = 'steps'"
    )
    with expdb.open(url) as db:
        for _ in range(40):
            with db.buffer("b").episode("t") as episode:
                episode.extend({"reward": np.zeros(500), "truncated": np.arange(500) == 499})
    if has_statistics:
        server.execute("ANALYZE", name)
    ((before,),) = server.execute(read, name)
    with expdb.open(url) as db:
        changed = np.arange(0, 10_000, 10)  # of half of the episodes
        with pytest.warns(
            errors.ExpDBWarning, match="the return of an episode is the sum of its rewards"
        ):
            assert db.buffer("b").update(changed, reward=1.0) == 1_000
        returns = db.buffer("b").episodes()["episode_return"].to_pylist()
        assert returns == [50.0] * 20 + [0.0] * 20
    ((after,),) = server.execute(read, name)
    assert after - before < 10 * 20_000


# -- changes without expdb -------------------------------------------------------------------------


def test_triggers_record_rewards_and_deletions_made_without_expdb(url):
    with expdb.open(url, max_lag_seconds=0.0) as db:
        buffer = db.buffer("b", capacity=100)
        with buffer.episode("e") as episode:
            for k in range(10):
                episode.append(**step(k))
        before = buffer.stats()["revision"]
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE expdb.steps SET reward = 5 WHERE position IN (2, 3)")
            connection.execute("UPDATE expdb.steps SET reward = NULL WHERE position = 4")
            connection.execute("UPDATE expdb.episodes SET policy_version = 7")
        assert buffer.episodes().to_pylist()[0]["episode_return"] == 7 + 5 + 5
        assert buffer.stats()["revision"] == before + 3
        assert (
            buffer.sample(50, {"policy_version": 7, "reward": 5.0}, seed=0)["reward"].tolist()
            == [5.0] * 50
        )
        assert np.isnan(buffer.get([4])["reward"]).all()
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM expdb.steps WHERE position < 4")
        assert len(buffer) == 6
        assert set(buffer.sample(100, seed=0)["position"].tolist()) == set(range(4, 10))
        assert buffer.stats()["revision"] == before + 4
        buffer.store_batch([step(k) for k in range(97)])
        assert len(buffer) == 100


# -- processes -------------------------------------------------------------------------------------


def write(url, worker, flushes):
    with expdb.open(url) as db, db.buffer("b").episode(f"w{worker}", flush_steps=16) as episode:
        for k in range(16 * flushes):
            episode.append(number=worker * 10_000 + k, obs=OBS, reward=0.0)


@pytest.mark.slow
def test_eight_writers_keep_the_capacity_exactly_and_never_deadlock(server, url):
    with expdb.open(url) as db:
        buffer = db.buffer("b", capacity=500)
        buffer.store_batch([step(k) for k in range(500)])
        processes = [SPAWN.Process(target=write, args=(url, worker, 25)) for worker in range(8)]
        for process in processes:
            process.start()
        sizes, rewarded = set(), 0
        while any(process.is_alive() for process in processes):
            sizes.add(len(buffer))
            assert len(np.unique(buffer.sample(100)["position"])) > 1
            rewarded += buffer.update(expdb.QueryBuilder().gte("position", 0), tags={"seen": True})
            batch = next(buffer.scan(size=1000))
            assert batch.size == 500
            assert (np.diff(batch["position"]) > 0).all()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        assert sizes == {500}
        assert rewarded >= 500
        assert buffer.stats()["added"] == 500 + 8 * 16 * 25
    name = re.search(r"@/(\w+)", url)[1]
    assert server.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", name
    ) == [(0,)]


def store_one(buffer, number, results):
    results.put(buffer.store(**step(number)))


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_a_buffer_opens_its_own_connection_in_another_process(url, context):
    with expdb.open(url) as db:
        buffer = db.buffer("b")
        buffer.store(**step(0))
        results = context.Queue()
        processes = [
            context.Process(target=store_one, args=(buffer, k, results)) for k in range(1, 4)
        ]
        for process in processes:
            process.start()
        assert buffer.sample(5).size == 5
        assert sorted(results.get(timeout=60) for _ in processes) == [1, 2, 3]
        for process in processes:
            process.join()
            assert process.exitcode == 0
        assert buffer.store(**step(4)) == 4
        assert pickle.loads(pickle.dumps(buffer)).store(**step(5)) == 5


# -- db.sql ----------------------------------------------------------------------------------------


def test_settings_and_locks_of_a_query_end_with_the_query(url):
    with expdb.open(url) as db:
        db.buffer("b").store(x=1)
        for statement in (
            "SELECT "
            "set_config('search_path', "
            "'public', false)", "SELECT set_config('statement_timeout', '1', false)",
            "SELECT "
            "set_config('default_transaction_read_only', "
            "'off', false)", "SELECT pg_advisory_lock(1702391908)",
        ):  # fmt: skip
            db.sql(statement)
        assert db.sql("SELECT count(*) AS n FROM experience").to_pylist() == [{"n": 1}]
        assert db.buffer("b").store(x=2) == 1
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT pg_try_advisory_lock(1702391908)").fetchone() == (
                True,
            )


def test_a_query_is_stopped_after_the_timeout(url):
    with expdb.open(url, timeout=0.5) as db:
        with pytest.raises(errors.SqlError, match="longer timeout"):
            db.sql("SELECT pg_sleep(30)")
        with pytest.raises(errors.SqlError, match="longer timeout"):
            db.sql("SELECT set_config('statement_timeout', '0', true), pg_sleep(30)")


def test_colons_in_text_casts_and_comments_are_not_parameters(url):
    with expdb.open(url) as db:
        rows = db.sql(
            "SELECT ':a' AS a, 'it''s :b' AS b, E'\\':c' AS c, 5::text AS d, :e || '%' AS e, 7 % 4 "
            "AS f -- :g",
            {"e": "x"},
        ).to_pylist()
        assert rows == [{"a": ":a", "b": "it's :b", "c": "':c", "d": "5", "e": "x%", "f": 3}]


# -- PgBouncer -------------------------------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which("pgbouncer") is None,
    reason="pgbouncer is not installed: apt-get install pgbouncer",
)
def test_pgbouncer_in_transaction_mode_works(server, url):
    name = re.search(r"@/(\w+)", url)[1]
    config = server.folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{name} = host={server.folder} dbname={name}\n[pgbouncer]\nlisten_addr = "
        "127.0.0.1\nlisten_port = 16432\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nunix_socket_dir = "
        f"\nlogfile = {server.folder}/bouncer.log\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    config.write_text(config.read_text().replace(f"dbname={name}", f"dbname={name} user=expdb"))
    process = subprocess.Popen(
        ["pgbouncer", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **server.options,
    )
    try:
        time.sleep(1.0)
        through = f"postgresql://expdb@127.0.0.1:16432/{name}"
        with expdb.open(through) as db, ThreadPoolExecutor(6) as pool:
            buffer = db.buffer("b", capacity=300)

            def work(k):
                for n in range(20):
                    buffer.store(**step(n), task_id=str(k))
                    buffer.sample(8)
                    buffer.update({"task_id": str(k)}, reward=2.0)
                    db.sql("SELECT avg(field(payload, 'number')) FROM experience")

            list(pool.map(work, range(6)))  # raises the error of a thread
            assert len(buffer) == 120
    finally:
        process.terminate()
        process.wait()


def test_an_interrupt_at_the_end_of_a_pipeline_is_raised_without_a_hang(url, monkeypatch):
    real, armed = psycopg.Pipeline._exit_gen, []

    def interrupted(self, *arguments):
        if armed and armed.pop():
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(psycopg.Pipeline, "_exit_gen", interrupted)
    with expdb.open(url, timeout=5) as db:
        buffer = db.buffer("b")
        buffer.store(task_id="t", n=1)
        for call in (
            lambda: buffer.update({"task_id": "t"}, reward=1.0),
            lambda: buffer.count({"task_id": "t"}),
            lambda: buffer.sample(4),
        ):
            armed.append(True)
            with pytest.raises(KeyboardInterrupt):
                call()
            assert not armed
        buffer.store(task_id="t", n=2)
        assert len(buffer) == 2
        assert db.check() == []


def test_an_update_with_a_lost_commit_is_repeated_for_the_same_steps(url, proxy):
    """The query no longer matches after the first attempt has committed."""
    with expdb.open(proxy.url(url)) as db:
        buffer = db.buffer("b")
        buffer.store_batch([{"task_id": "t", "number": k} for k in range(5)])
        unrewarded, ended = expdb.QueryBuilder().is_null("reward"), []
        end = PostgresqlSession.end

        def swallowed(session):
            if not ended:
                ended.append(True)
                proxy.swallow = True
            return end(session)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PostgresqlSession, "end", swallowed)
            assert buffer.update(unrewarded, tags={"judge": 1}, reward=0.0, required=True) == 5
        assert ended
        assert buffer.count({"reward": 0.0}) == 5


def test_a_repeated_update_keeps_later_changes_of_another_process(url, monkeypatch):
    with expdb.open(url) as first, expdb.open(url) as second:
        buffer, other = first.buffer("b"), second.buffer("b")
        buffer.store(number=1, tags={"state": "new"})
        merge, cut = change._merge_tags, []

        def cut_once(store, session, *others):
            merge(store, session, *others)
            if not cut:
                cut.append(True)
                pid = session.connection.connection.driver_connection.info.backend_pid
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                connection.close()
                time.sleep(0.1)
                other.update({"tags.state": "new"}, tags={"state": "second"})

        monkeypatch.setattr(change, "_merge_tags", cut_once)
        buffer.update({"tags.state": "new"}, tags={"state": "first"})
        assert cut
        assert buffer.get([0], fields=["tags"])["tags"].tolist() == [{"state": "second"}]


def test_a_seed_draws_the_same_steps_after_a_lost_connection(url, proxy):
    with expdb.open(proxy.url(url), resident_bytes=0) as db:
        buffer = db.buffer("b")
        buffer.store_batch([step(k) for k in range(500)])
        expected = buffer.sample(16, seed=5)["number"].tolist()
        for cut_at in range(1, 5):
            proxy.swallow_after = cut_at
            assert buffer.sample(16, seed=5)["number"].tolist() == expected
            proxy.swallow_after = None


def test_repeating_a_version_change_accepts_a_newer_stored_version(url, monkeypatch):
    with expdb.open(url) as first, expdb.open(url) as second:
        buffer, other = first.buffer("b"), second.buffer("b")
        set_version, lost = consumers.set_policy_version, []

        def lose_the_answer(store, version):
            set_version(store, version)
            if not lost:
                lost.append(True)
                other.policy_version = 9
                raise errors.CommitUnknown("the answer is lost")

        monkeypatch.setattr(consumers, "set_policy_version", lose_the_answer)
        buffer.policy_version = 8
        assert buffer.policy_version == 9
        with pytest.raises(expdb.InvalidValue, match="must not decrease"):
            buffer.policy_version = 8


def test_closing_a_handle_closes_a_connection_in_use_after_its_use(url):
    db = expdb.open(url)
    with reading(db) as session:
        driver = session.driver
        db.close()
        assert not driver.closed
    assert driver.closed


def test_a_forked_child_has_its_own_commit_lock(url):
    with expdb.open(url) as db:
        engine = engine_of(db)
        engine.release()  # a forked child leaves the connections of its parent open
        with engine._commits_lock:
            engine.forget_connections()  # as in the child
            assert not engine._commits_lock.locked()
            db.buffer("b").store(**step(0))


def test_a_call_fails_after_the_timeout_if_all_connections_are_in_use(url, monkeypatch):
    with expdb.open(url, timeout=0.2) as db:
        db.buffer("b").store(**step(0))
        monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)
        with reading(db), pytest.raises(errors.DatabaseBusy, match="use fewer threads"):
            db.buffer("b").count()
        assert db.buffer("b").count() == 1


def test_a_server_that_was_never_reached_is_an_error_before_the_timeout(postgresql):
    began = time.monotonic()
    with pytest.raises(errors.ConnectionLost, match="check host and port"):
        expdb.open("postgresql://u@127.0.0.1:1/runs", timeout=20.0)
    assert time.monotonic() - began < 10.0


def test_threads_that_begin_at_once_open_no_more_connections_than_allowed(url, monkeypatch):
    create, opened = connection.ConnectionPool._create_connection, []

    def slowly(pool):
        opened.append(1)
        time.sleep(0.1)
        return create(pool)

    with expdb.open(url) as db:
        buffer = db.buffer("b")
        buffer.store(**step(0))
        monkeypatch.setattr(connection, "MAX_CONNECTIONS", 3)
        monkeypatch.setattr(connection.ConnectionPool, "_create_connection", slowly)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: buffer.count(), range(8))) == [1] * 8
    assert len(opened) <= 2  # the pool has one connection already


def test_a_connection_that_is_opened_during_close_is_closed(postgresql_url):
    db = expdb.open(postgresql_url)
    buffer, engine = db.buffer("b"), engine_of(db)
    connect = engine._connections.connect
    opened = []

    def connect_late():
        db.close()
        connection = connect()
        opened.append(connection.connection.driver_connection)
        return connection

    engine._connections.connect = connect_late
    with pytest.raises(errors.DatabaseClosed):
        buffer.count()
    assert opened[0].closed


def test_a_pooled_connection_with_an_open_transaction_is_replaced(postgresql_url):
    with expdb.open(postgresql_url) as db:
        buffer = db.buffer("b")
        buffer.count()
        (record,) = engine_of(db)._connections.pool._idle
        driver = record.dbapi_connection
        driver.execute("BEGIN")
        driver.execute("SELECT 1")
        buffer.store(x=1)
        assert (buffer.count(), len(list(buffer.scan()))) == (1, 1)
        assert driver.closed


def test_a_connection_is_closed_after_an_interrupt(postgresql_url):
    with expdb.open(postgresql_url) as db:
        buffer = db.buffer("b")
        buffer.count()
        (record,) = engine_of(db)._connections.pool._idle
        connection, transaction = record.dbapi_connection, reading(db)
        transaction.__enter__().query("SELECT 1")
        assert not transaction.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert connection.closed  # its state is unknown, so the pool must not reuse it
        assert buffer.count() == 0
