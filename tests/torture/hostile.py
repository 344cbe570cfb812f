"""Hostile input: names, values, queries and statements of attackers, and untrusted files."""

from __future__ import annotations

import os
import pickle
import random
import re
import sqlite3
import string
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import expdb
from expdb import QueryBuilder, errors
from torture.damage import BOOKS, FINE, REFUSED, WRONG, read_all, replace, run_cases, sample_file
from torture.oracle import BUFFER, step, verify
from torture.table import DATABASES, Outcome, Place, fault

TEXTS = [
    "'; DROP TABLE steps; --", "\"; DELETE FROM steps; --", "') OR ('1'='1", "' OR 1=1 --",
    "1 OR 1=1", "a'b", 'a"b', "a`b", "]]", "%s", "%(x)s",
    ":name", "?", "$1", "{}", "{0.__class__}", "\\", "\\'", "%", "_", "a%b", "a_b", "%%", "*",
    "[a-z]", "NULL", "None", "true", "0", "-1", "1e999",
    "NaN", "", " ", "\n", "a\tb", "\r\n", "\u202e", "🦊", "é", "É", "ß", "SS", "x" * 5_000, "$",
    "$.a", "$[0]", "a.b", ".a", "a[0]", '"a"', "tags.x",
    "__class__", "__reduce__", "position", "experience", "steps", "main.steps",
    "field(payload, 'text')", "os.system('touch pwned')", "\x7f", "\ufeff",
    "cos\nsystem\n(S'touch pwned'\ntR.", "!!python/object/apply:os.system ['touch pwned']",
    "{\"new\": 1}", "[]", "\"", "\0", "a\0b", "\ud800", "\udfff x",
]  # fmt: skip
STATEMENTS = [
    "DELETE FROM steps", "UPDATE steps SET reward = 1", "INSERT INTO steps DEFAULT VALUES",
    "DROP VIEW experience", "CREATE TABLE pwned (x int)",
    "CREATE TEMP TABLE pwned (x int)", "SELECT 1; DELETE FROM steps",
    "WITH x AS (SELECT 1) DELETE FROM steps", "VACUUM", "BEGIN", "COMMIT", "ROLLBACK",
    "SELECT load_extension('pwned')", "EXPLAIN ANALYZE DELETE FROM steps",
    "/**/DELETE/**/FROM/**/steps", "-- \nDELETE FROM steps", "",
    "ATTACH 'pwned.db' AS pwned", "VACUUM INTO 'pwned.db'", "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = DELETE", "REINDEX", "ANALYZE",
    "SELECT writefile('pwned', 'x')", "SELECT fts3_tokenizer('pwned')",
    "COPY steps TO '/tmp/pwned'", "COPY (SELECT 1) TO PROGRAM 'touch pwned'",
    "SELECT lo_import('/etc/passwd')", "DO $$ BEGIN DELETE FROM expdb.steps; END $$",
    "TRUNCATE steps", "LOCK steps", "SELECT 1 FROM steps FOR UPDATE",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT query_to_xml('DELETE FROM expdb.steps', true, true, '')",
]  # fmt: skip
NUMBERS = [
    0, -1, 1 << 31, 1 << 62, 1 << 63, -(1 << 63) - 1, 1 << 70, 0.5, 1e300, float("nan"),
    float("inf"), True, None, "1", b"1", [], {}, (1, 2),
]  # fmt: skip


def fuzz(rng: random.Random) -> str:
    """Return a text that combines parts of hostile texts and random characters."""

    def piece() -> str:
        if rng.random() < 0.5:
            return rng.choice(TEXTS)[:40]
        return "".join(rng.choices(string.printable, k=rng.randrange(8)))

    return "".join(piece() for _ in range(rng.randrange(1, 5)))


def like(pattern: str, value: str) -> bool:
    """Return whether a LIKE pattern matches, without use of the database."""
    expression, escaped = "", False
    for character in pattern:
        if not escaped and character == "\\":
            escaped = True
            continue
        wild = {"%": ".*", "_": "."} if not escaped else {}
        expression += wild.get(character, re.escape(character))
        escaped = False
    return re.fullmatch(expression, value, re.DOTALL) is not None


class Attempts:
    """Uses hostile texts for every name and value that a user can choose.

    A second buffer contains steps that the attempts must not change.
    """

    def __init__(self, db: expdb.ExperienceDB):
        self.db, self.buffer = db, db.buffer(BUFFER)
        self.honest = {
            self.buffer.store(task_id=f"honest {k}", tags={"k": k}, **step(0, k)): (0, k)
            for k in range(5)
        }
        self.strange = db.buffer("strange")
        self.strange.store(x=0, task_id="honest")
        self.texts = ["honest"]  # task ids in the strange buffer
        self.violations: list[str] = []

    def refused(self, what: str, text: Any, call: Any) -> Any:
        """Return the result of a call, or None if expdb refused it with a one-line error."""
        try:
            return call()
        except expdb.ExpDBError as error:
            if "\n" in str(error):
                self.violations.append(f"{what} {text!r}: an error of several lines")
        except (TypeError, KeyError) as error:  # as Python itself refuses an argument
            if what not in ("as a keyword", "as a limit"):
                self.violations.append(f"{what} {text!r}: {type(error).__name__}: {error}")
        except Exception as error:
            self.violations.append(f"{what} {text!r}: {type(error).__name__}: {error}")
        return None

    def expect(self, what: str, text: Any, actual: Any, wanted: Any) -> None:
        if actual is not None and actual != wanted:
            actual, wanted = str(actual)[:200], str(wanted)[:200]
            self.violations.append(f"{what} {text!r} gives {actual!r}, not {wanted!r}")

    def attempt(self, text: str) -> None:
        """Use one text for every name and value."""
        strange, refused, expect = self.strange, self.refused, self.expect
        row = {
            "task_id": text, "task_name": text, "tags": {"k": text}, "field": text,
            "whole": {text: [text, {text: text}]},
        }  # fmt: skip
        agent = text or "agent"
        position = refused("as values", text, lambda: strange.store(**row, agent_id=agent))
        if position is not None:
            self.texts.append(text)
            (back,) = strange.get([position], fields=list(row)).to_list()
            expect("as values", text, {key: back[key] for key in row}, row)
        equal = self.texts.count(text)
        for name, arguments, count in (
            ("eq", ("task_id", text), equal), ("ne", ("task_id", text), len(self.texts) - equal),
            ("in_", ("task_id", [text, "nobody"]), equal),
            ("like", ("task_id", text), sum(like(text, value) for value in self.texts)),
            ("eq", ("tags.k", text), equal if text != "honest" else 0),
        ):  # fmt: skip
            what, ask = f"in {name} of {arguments[0]}", partial(self.count, name, arguments)
            expect(what, text, refused(what, text, ask), count)
        keys = {"task_id": "honest"}
        if refused("as a keyword", text, lambda: strange.store(**{text: 1}, **keys)) is not None:
            self.texts.append("honest")
        tagged = partial(strange.store, **keys, tags={text: 1})
        position = refused("as a tag's key", text, tagged)
        if position is not None:
            self.texts.append("honest")
            (back,) = strange.get([position], fields=["tags"]).to_list()
            expect("as a tag's key", text, back["tags"], {text: 1})
            ask = partial(strange.count, {f"tags.{text}": 1})
            answer = refused("as a tag in a query", text, ask)
            if answer is not None and answer < 1:
                self.violations.append(f"the tag {text!r} is not found")
        for what, call in (
            ("as a column", lambda: strange.count(QueryBuilder().eq(text, 1))),
            ("as an order", lambda: strange.sample(1, sampler=expdb.Ordered(text))),
            ("as fields", lambda: strange.sample(1, fields=[text])),
            ("as an index", lambda: strange.index(text)),
            ("as an episode", lambda: strange.end_episode(text)),
            ("as a buffer to drop", lambda: self.db.drop(f"no {text}")),
        ):  # fmt: skip
            refused(what, text, call)
        sql, named = self.db.sql, {"v": text}
        answer = refused("as a parameter", text, lambda: sql("SELECT :v AS v", named).to_pylist())
        expect("as a parameter", text, answer, [named])
        ask = partial(sql, "SELECT field(payload, :v) AS v FROM experience", named)
        refused("as a name in SQL", text, ask)
        refused("as SQL", text, lambda: self.db.sql(text))
        made = refused("as a buffer", text, lambda: self.db.buffer(text))
        if made is not None and made.name not in (BUFFER, "strange"):
            expect("as a buffer", text, made.name in self.db.buffers(), True)
            self.db.drop(made.name)

    def count(self, operator: str, arguments: tuple[Any, ...]) -> int:
        """Return the number of steps that an operator matches."""
        return self.strange.count(getattr(QueryBuilder(), operator)(*arguments))

    def limits(self) -> None:
        """Pass unusual values where numbers are expected."""
        strange = self.strange
        for number in NUMBERS:
            for call in (
                lambda n: strange.scan(size=n), lambda n: strange.scan(after=n),
                lambda n: strange.get([n]), lambda n: strange.sample_tasks(n),
                lambda n: strange.scan({"reward": n}), lambda n: strange.count({"step": n}),
                lambda n: setattr(strange, "capacity", n) if n not in (None, 1) else None,
                lambda n: strange.update_priorities([0], [n]),
                lambda n: strange.sample(1, unit=expdb.NStep(n)),
                lambda n: strange.sample(1, sampler=expdb.Newest(n)),
            ):  # fmt: skip
                self.refused("as a limit", number, lambda call=call, number=number: call(number))


@fault(
    "hostile names, values, keys, limits and statements, {database}",
    "nothing executed, nothing written, nothing matched by accident", len(TEXTS), 300,
    database=DATABASES,
)  # fmt: skip
def be_hostile(kind: str, place: Place, count: int) -> Outcome:
    """Use the listed texts and random combinations of them for every name and value."""
    rng, start = random.Random(place.seed), Path.cwd()
    folder = place.folder / f"{kind} here"
    folder.mkdir()
    os.chdir(folder)
    try:
        with expdb.open(place.location(kind, "hostile", ordinary=True)) as db:
            attempts = Attempts(db)
            schema = _schema(db, kind)
            tried = [*TEXTS, *(fuzz(rng) for _ in range(count - len(TEXTS)))]
            for text in tried:
                attempts.attempt(text)
            for statement in STATEMENTS:
                try:
                    db.sql(statement)
                    attempts.violations.append(f"db.sql ran {statement}")
                except (errors.SqlRefused, errors.SqlError):
                    continue
            attempts.limits()
            violations = [*attempts.violations, *verify(db, attempts.honest)]
            now = _schema(db, kind)
            violations += [f"the schema has changed: {now ^ schema}"] * (now != schema)
        violations += [f"a file was made: {name}" for name in os.listdir(folder)]
        violations += ["/tmp/pwned was made"] * os.path.exists("/tmp/pwned")
    finally:
        os.chdir(start)
    note = f"{len(STATEMENTS)} statements, {len(NUMBERS)} numbers for limits"
    return Outcome(len(tried), violations, note)


def _schema(db: expdb.ExperienceDB, kind: str) -> set[str]:
    query = (
        "SELECT type || ' ' || name || ' ' || coalesce(sql, '') AS one FROM sqlite_master WHERE "
        "name NOT LIKE '%_by_%'"
        if kind == "SQLite"
        else "SELECT relkind::text || ' ' || relname AS one FROM pg_class WHERE relnamespace = "
        "'expdb'::regnamespace AND relkind IN ('r', 'v')"
    )
    return set(db.sql(query)["one"].to_pylist())


# -- untrusted files -------------------------------------------------------------------------------


class Exploit:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


class Extension(pa.ExtensionType):
    """Makes a file when pyarrow reads a schema that names it."""

    canary = ""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "torture.extension")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Extension:
        Path(cls.canary).touch()
        return cls()


def poisons(rng: random.Random, canary: str, value: Any) -> Any:
    """Return a harmful replacement for a value of a column."""
    metadata = {"expdb.field": '["int64", []]'}
    kinds = {"writer": Extension(), "step": pa.int64()}
    schema = pa.schema([pa.field(name, kinds[name], metadata=metadata) for name in kinds])
    json_poison = rng.choice([
        '["object", []]', '["V8", []]', '["int64", [99999999999]]', '["int64", [-1]]',
        "[" * 5000, "{}", "null", '["__import__", []]',
    ])  # fmt: skip
    if isinstance(value, bytes):
        forged = value.replace(b'["int64", []]', json_poison.encode()[:13].ljust(13))
        return rng.choice([
            pickle.dumps(Exploit(canary)), schema.serialize().to_pybytes(), forged, b"",
            b"\0" * 64, rng.randbytes(200), value[: len(value) // 2],
        ])  # fmt: skip
    if isinstance(value, str):
        types = '{"types": {"writer": ' + json_poison + '}, "optional": []}'
        exploit = pickle.dumps(Exploit(canary), 0).decode("latin-1")
        text: str = rng.choice([*TEXTS[:60], types, json_poison, exploit])
        return text.replace("\0", "").encode("utf-8", "replace").decode()
    return rng.choice([0, -1, 1, 1 << 31, (1 << 63) - 1, -(1 << 63), 10**12, rng.randrange(1000)])


@fault(
    "a stranger's file: poison in any column of any table",
    "nothing executed, 0 crashes, typed errors", 200, 4_000,
)  # fmt: skip
def poison_file(place: Place, count: int) -> Outcome:
    """Replace one value of a table while no trigger exists, and read everything."""
    path, canary = place.folder / "poison.db", place.folder / "pwned"
    rng = random.Random(place.seed)
    sample_file(path)
    whole = path.read_bytes()
    Extension.canary = str(canary)
    pa.register_extension_type(Extension())

    def poisoned(seed: int) -> int:
        replace(path, whole)
        what = _poison(path, random.Random(seed), str(canary))
        status = read_all(str(path))
        if canary.exists():
            canary.unlink()
            raise AssertionError(f"EXECUTED: {what}")
        return status

    try:
        seeds = [rng.getrandbits(64) for _ in range(count)]
        cases = [(f"seed {seed}", partial(poisoned, seed)) for seed in seeds]
        outcome, counts = run_cases(cases, (FINE, REFUSED, BOOKS, WRONG))
    finally:
        pa.unregister_extension_type("torture.extension")
    outcome.note += f", {counts[WRONG]} with other values, because another chunk is read"
    return outcome


def _poison(path: Path, rng: random.Random, canary: str) -> str:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    query = "SELECT sql, name FROM sqlite_master WHERE type = 'trigger'"
    triggers = connection.execute(query).fetchall()
    for _, name in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    table = rng.choice([
        "buffers", "signatures", "signatures", "episodes", "steps", "segments", "chunks", "chunks",
        "expdb_version",
    ])  # fmt: skip
    described = connection.execute(f"PRAGMA table_info({table})").fetchall()
    columns = [row[1] for row in described]
    keys = [row[1] for row in described if row[5]] or columns
    rows = connection.execute(f"SELECT * FROM {table} LIMIT 200").fetchall()
    row, column = rng.choice(rows), rng.choice(columns)
    before = row[columns.index(column)]
    value = poisons(rng, canary, before if before is not None else rng.choice(["text", 1]))
    try:
        condition = " AND ".join(f"{key} IS ?" for key in keys)
        connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE {condition}",
            (value, *[row[columns.index(key)] for key in keys]),
        )
    except (sqlite3.IntegrityError, sqlite3.OperationalError):
        value = "left as it was, as SQLite refused it"
    for sql, _ in triggers:
        connection.execute(sql)
    connection.close()
    return f"{table}.{column} = {str(value)[:80]!r}"
