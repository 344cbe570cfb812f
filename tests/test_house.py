"""The rules of the house: who may import whom, and what no file may do."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "expdb"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


def imports(path: Path) -> set[str]:
    """Every module a file imports, at any depth, in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def test_the_walk_finds_the_package():
    assert {"buffer.py", "chunks/codec.py", "replay/samplers.py"} <= set(NAMES)


def complaints(rule):
    """What a rule, a generator of complaints, says of every file of the package."""
    return [
        f"{path.relative_to(PACKAGE)}: {said}"
        for path in FILES
        for said in rule(path, path.relative_to(PACKAGE), imports(path))
    ]


def test_sql_and_arrow_stay_in_storage():
    def rule(path, relative, named):
        roots = {name.split(".")[0] for name in named}
        if relative.parts[0] not in ("storage", "chunks", "memory", "sql"):
            yield from roots & {"sqlalchemy", "sqlite3", "alembic"}
            if path.name not in (
                "batch.py",
                "buffer.py",
                "database.py",
                "export.py",
            ):  # Arrow's face: tables go out there
                yield from roots & {"pyarrow"}

    assert complaints(rule) == []


def test_storage_and_replay_do_not_know_each_other():
    above = (
        "expdb.buffer",
        "expdb.sampling",
        "expdb.database",
        "expdb.cli",
        "expdb.writer",
        "expdb.demo",
    )
    forbidden = {
        **dict.fromkeys(
            ("storage", "chunks", "memory", "sql"), ("expdb.replay", "expdb.batch", *above)
        ),
        "replay": ("expdb.storage", "expdb.chunks", "expdb.memory", "expdb.sql", *above),
        "writer.py": ("expdb.storage", "expdb.replay", "expdb.buffer"),
    }

    def rule(path, relative, named):
        return [name for name in named if name.startswith(forbidden.get(relative.parts[0], ("-",)))]

    assert complaints(rule) == []


def test_chance_stays_in_replay():
    def rule(path, relative, named):
        if (
            relative.parts[0] in ("storage", "chunks", "memory", "sql")
            and relative.name != "connection.py"
        ):  # the jitter of its retries is no sampling
            yield from (name for name in named if name.split(".")[0] == "random")
            if "np.random" in path.read_text():
                yield "np.random"

    assert complaints(rule) == []


def test_the_faces_use_the_public_names():
    def rule(path, relative, named):
        if path.name in ("cli.py", "demo.py", "export.py", "plot.py", "show.py"):
            return [
                name
                for name in named
                if name.startswith("expdb.")
                and name not in ("expdb.demo", "expdb.export", "expdb.plot", "expdb.show")
            ]
        return []

    assert complaints(rule) == []


def test_integrations_use_the_public_names_and_nobody_imports_them():
    inner = (
        "expdb.storage",
        "expdb.chunks",
        "expdb.memory",
        "expdb.sql",
        "expdb.replay",
        "expdb.buffer",
        "expdb.database",
        "expdb.errors",
    )

    def rule(path, relative, named):
        for name in named:
            if relative.parts[0] != "integrations":
                if name.startswith("expdb.integrations"):
                    yield name
            elif name.startswith(inner) or (
                name.count(".") > 1
                and name.startswith("expdb.")
                and not name.startswith("expdb.integrations")
            ):
                yield name

    assert complaints(rule) == []


def test_migrations_import_nothing_of_expdb():
    for path in (PACKAGE.parent / "migrations").rglob("*.py"):
        assert not any(name.split(".")[0] == "expdb" for name in imports(path))


def test_there_is_no_import_circle():
    modules = {
        f"expdb.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}": path
        for name, path in zip(NAMES, FILES, strict=True)
    }
    arrows = {
        module: {name for name in imports(path) if name in modules and name != module}
        for module, path in modules.items()
    }
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for other in arrows[module]:
                walk(other, (*trail, module))
            done.add(module)

    for module in modules:
        walk(module, ())


def test_nothing_stored_can_be_executed():
    def rule(path, relative, named):
        tree = ast.parse(path.read_text())
        used = {name.split(".")[0] for name in named}
        if (
            path.name == "database.py"
        ):  # a handle that its owner pickled names the SQLite library to open it with
            (reopened,) = (
                node
                for node in tree.body
                if isinstance(node, ast.FunctionDef) and node.name == "_reopened"
            )
            assert (
                ast.unparse(tree).count("importlib.")
                == ast.unparse(reopened).count("importlib.")
                == 1
            )
            used -= {"importlib"}
        yield from used & {"pickle", "marshal", "shelve", "importlib", "dill", "cloudpickle"}
        calls = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        yield from calls & {"eval", "exec", "compile", "__import__"}

    assert complaints(rule) == []


def test_no_error_is_swallowed():
    def rule(path, relative, named):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or (len(node.body) == 1 and isinstance(node.body[0], ast.Pass))
            ):
                yield f"line {node.lineno}"

    assert complaints(rule) == []


def test_a_bare_import_brings_in_neither_alembic_nor_frameworks():
    code = (
        "import sys, expdb; unwanted = 'alembic', 'torch', 'rich', 'gymnasium', 'pandas', 'click'; "
        "print([m for m in unwanted if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_work_under_a_lock_goes_through_locked():
    """An interrupt may come at the line where a block is left, before the lock is given back."""

    def rule(path, relative, named):
        if relative.name == "locks.py" or relative.parts[0] == "integrations":
            return
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.With) and any(
                ast.unparse(item.context_expr).endswith(("lock", "_watching"))
                for item in node.items
            ):
                if node.body[-1].end_lineno == node.lineno:  # hot, and spelled out on one line
                    continue
                yield f"line {node.lineno}"

    assert complaints(rule) == []
