"""Corruption: flipped bits in a file and mutated Arrow messages, read by child processes."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import expdb
from expdb.chunks.chunk import crc_of
from torture.oracle import BUFFER, step, wrong_fields
from torture.table import Outcome, Place, fault

STEPS = 240
MEMORY = 1 << 30  # additional bytes for a child; expdb must refuse a message that claims more
FINE, REFUSED, BOOKS, WRONG, UNTYPED = range(5)
WORDS = dict(enumerate((
    "read as they were", "refused", "other rewards, names or steps (mutable columns)",
    "wrong values", "untyped errors",
)))  # fmt: skip
FIELDS = [
    "position", "writer", "number", "obs", "text", "call", "frame", "reward", "task_id", "step",
]  # fmt: skip


def sample_file(path: Path) -> None:
    """Write a file with chunks of all kinds: fixed size, variable size and compressed."""
    with expdb.open(path) as db:
        buffer = db.buffer(BUFFER)
        for number in range(0, STEPS, 24):
            with buffer.episode(f"t{number % 3}", episode_tags={"seed": number}) as episode:
                for k in range(24):
                    row = {**step(0, number + k, number, 24), "frame": _frame(number + k)}
                    episode.append(**row, reward=1.0, terminated=k == 23)


def _frame(number: int) -> np.ndarray:
    return (np.arange(1500) // 50 + number).astype(np.uint8)


def read_all(path: str) -> int:
    """Read every step and field, and return FINE, REFUSED, BOOKS or WRONG."""
    try:
        with expdb.open(path, create=False) as db:
            buffer, books, count = db.buffer(BUFFER), False, 0
            for rows in buffer.scan(fields=FIELDS):
                for row in rows.to_list():
                    number = row["position"]
                    if (row["writer"], row["number"]) != (0, number) or wrong_fields(row):
                        return WRONG
                    if not np.array_equal(row["frame"], _frame(number)):
                        return WRONG
                    written = 1.0, f"t{number // 24 * 24 % 3}", number % 24
                    books |= (row["reward"], row["task_id"], row["step"]) != written
                    count += 1
            batch = buffer.sample(
                64, sampler=expdb.Prioritized(), unit=expdb.NStep(2), fields=["number", "frame"],
                seed=0,
            )  # fmt: skip
            pairs = zip(batch["frame"], batch["number"], strict=True)
            if not all(np.array_equal(frame, _frame(number)) for frame, number in pairs):
                return WRONG
            return BOOKS if books or count != STEPS else FINE
    except expdb.ExpDBError:
        return REFUSED


def in_children(cases: Sequence[Callable[[], int]]) -> list[int]:
    """Run cases in forked children with limited memory.

    Return the result of each case, or the negative number of the signal that killed it. If a child
    dies, a new child continues with the next case.
    """
    results: list[int] = []
    while len(results) < len(cases):
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for case in cases[len(results) :]:
                signal.alarm(30)
                os.write(writer, bytes([_status(case)]))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            results += pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            results.append(status)
    return results


def _status(case: Callable[[], int]) -> int:
    try:
        return case()
    except BaseException as error:
        if os.environ.get("TORTURE_VERBOSE"):
            traceback.print_exception(error, limit=-4)
        return UNTYPED


def run_cases(
    tried: Sequence[tuple[str, Callable[[], int]]], allowed: Sequence[int]
) -> tuple[Outcome, Counter[int]]:
    """Run named cases, and return the outcome and the count of each result.

    A result that is not in `allowed`, such as a crash or an untyped error, is a violation.
    """
    results = in_children([case for _, case in tried])
    where: dict[int, list[str]] = {}
    for (name, _), result in zip(tried, results, strict=True):
        if result not in allowed:
            where.setdefault(result, []).append(name)
    counts = Counter(results)
    violations = [
        f"{WORDS.get(kind, f'killed by signal {-kind}')}: {places}"
        for kind, places in where.items()
    ]
    reported = [kind for kind in (FINE, REFUSED, BOOKS) if counts[kind]]
    note = ", ".join(f"{counts[kind]} {WORDS[kind]}" for kind in reported)
    return Outcome(len(tried), violations, note), counts


def replace(path: Path, content: bytes) -> None:
    """Replace a database file and delete the WAL of the old file."""
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    path.write_bytes(content)


@fault("single bits of the file flipped", "0 wrong field values, 0 crashes", 300, 10_000)
def flip_bits(place: Place, flips: int) -> Outcome:
    """Flip a bit anywhere in the file, and read everything."""
    path, rng = place.folder / "flips.db", random.Random(place.seed)
    sample_file(path)
    whole = path.read_bytes()

    def flip(at: int, bit: int) -> int:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        replace(path, damaged)
        return read_all(str(path))

    places = [(rng.randrange(len(whole)), rng.randrange(8)) for _ in range(flips)]
    cases = [(f"byte {at} bit {bit}", partial(flip, at, bit)) for at, bit in places]
    return run_cases(cases, (FINE, REFUSED, BOOKS))[0]


def mutants(rng: random.Random, message: bytes) -> bytes:
    """Return a corrupted copy of a message.

    The corruption changes bits, bytes, lengths or counts, or deletes or repeats a part.
    """
    data = bytearray(message)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # The metadata are at the beginning.
        at = rng.randrange(len(data) if rng.random() < 0.5 else min(len(data), 600))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                bounds = (1 << 63) - 1, -(1 << 63)
                number = rng.choice((0, 1, -1, 1 << 30, 1 << 40, *bounds, rng.getrandbits(32)))
                data[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, "little", signed=True)
            case 3:
                del data[at : at + rng.randrange(1, 64)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 64)]
        if not data:
            return b"\0"
    return bytes(data)


def _mutated(place: Place, count: int, *, forged: bool) -> Outcome:
    path, rng = place.folder / "mutants.db", random.Random(place.seed)
    sample_file(path)
    with expdb.open(path) as db:
        store = db.buffer(BUFFER)._store
        with store.engine.reading() as session:
            chunks = session.query(
                "SELECT id, rows, signature, crc, data FROM chunks WHERE buffer_id = ?", store.id
            )
            decoders = {id: store.signatures.decoder(session, id) for _, _, id, _, _ in chunks}
    whole = path.read_bytes()

    def store_and_read(chunk: int, crc: int, data: bytes) -> int:
        replace(path, whole)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(
            "UPDATE chunks SET data = ?, bytes = ?, crc = ? WHERE id = ?",
            (data, len(data), crc, chunk),
        )
        connection.close()
        return read_all(str(path))

    tried: list[tuple[str, Callable[[], int]]] = []
    while len(tried) < count:
        id, rows, signature, crc, data = rng.choice(chunks)
        mutant = mutants(rng, data)
        if mutant != data:
            crc = crc_of(decoders[signature].signature, id, rows, mutant) if forged else crc
            case = partial(store_and_read, id, crc, mutant)
            tried.append((f"chunk {id}, {len(mutant)} bytes", case))
    outcome, counts = run_cases(tried, (FINE, REFUSED, BOOKS, WRONG) if forged else (REFUSED,))
    if forged:
        outcome.note += f", {counts[WRONG]} with other values, which the forger chose"
    return outcome


@fault("mutated Arrow messages", "every one refused", 300, 10_000)
def mutate_messages(place: Place, count: int) -> Outcome:
    return _mutated(place, count, forged=False)


@fault(
    "mutated Arrow messages with a forged checksum",
    "0 crashes, no more memory than 1 GiB, typed errors", 300, 10_000,
)  # fmt: skip
def forge_messages(place: Place, count: int) -> Outcome:
    return _mutated(place, count, forged=True)
