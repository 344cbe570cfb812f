"""The rules of the house: who may import whom, and what no file may do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert {"buffer.py", "storage/codec.py", "replay/samplers.py"} <= set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_sql_and_arrow_stay_in_storage(path):
    room = path.relative_to(PACKAGE).parts[0]
    roots = {name.split(".")[0] for name in imports(path)}
    if room != "storage":
        assert not roots & {"sqlalchemy", "sqlite3", "alembic"}
        if path.name not in ("batch.py", "buffer.py", "database.py"):  # Arrow's face: tables go out there
            assert "pyarrow" not in roots


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_storage_and_replay_do_not_know_each_other(path):
    relative = path.relative_to(PACKAGE)
    named = imports(path)
    below = ("expdb.buffer", "expdb.sampling", "expdb.database", "expdb.cli", "expdb.writer", "expdb.demo")
    if relative.parts[0] == "storage":
        assert not any(name.startswith(("expdb.replay", "expdb.batch", *below)) for name in named)
    if relative.parts[0] == "replay":
        assert not any(name.startswith(("expdb.storage", *below)) for name in named)
    if relative.name == "writer.py":
        assert not any(name.startswith(("expdb.storage", "expdb.replay", "expdb.buffer")) for name in named)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_chance_stays_in_replay(path):
    relative = path.relative_to(PACKAGE)
    text = path.read_text()
    if relative.parts[0] == "storage" and relative.name != "sqlite.py":  # the jitter of its retries is no sampling
        assert "random" not in {name.split(".")[0] for name in imports(path)}
        assert "np.random" not in text


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_command_line_and_the_demo_use_the_public_face(path):
    if path.name in ("cli.py", "demo.py", "plot.py"):
        assert not any(name.startswith("expdb.") and name not in ("expdb.demo", "expdb.plot") for name in imports(path))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_integrations_use_the_public_face_and_nobody_imports_them(path):
    inside = path.relative_to(PACKAGE).parts[0] == "integrations"
    for name in imports(path):
        if inside:
            assert not name.startswith("expdb.") or name.startswith("expdb.integrations") or name.count(".") == 1
            assert not name.startswith(("expdb.storage", "expdb.replay", "expdb.buffer", "expdb.database", "expdb.errors"))
        else:
            assert not name.startswith("expdb.integrations")


def test_migrations_import_nothing_of_expdb():
    for path in (PACKAGE.parent / "migrations").rglob("*.py"):
        assert not any(name.split(".")[0] == "expdb" for name in imports(path))


def test_there_is_no_import_circle():
    modules = {f"expdb.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}": path for name, path in zip(NAMES, FILES, strict=True)}
    arrows = {module: {name for name in imports(path) if name in modules and name != module} for module, path in modules.items()}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for other in arrows[module]:
                walk(other, (*trail, module))
            done.add(module)

    for module in modules:
        walk(module, ())


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nothing_stored_can_be_executed(path):
    tree = ast.parse(path.read_text())
    used = {name.split(".")[0] for name in imports(path)}
    if path.name == "database.py":  # a handle that its owner pickled names the SQLite library to open it with
        (reopened,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_reopened")
        assert ast.unparse(tree).count("importlib.") == ast.unparse(reopened).count("importlib.") == 1
        used -= {"importlib"}
    assert not used & {"pickle", "marshal", "shelve", "importlib", "dill", "cloudpickle"}
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_error_is_swallowed(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert not (len(node.body) == 1 and isinstance(node.body[0], ast.Pass)), f"{path}:{node.lineno}"
            assert node.type is not None, f"{path}:{node.lineno}"


def test_a_bare_import_brings_in_neither_alembic_nor_frameworks():
    code = "import sys, expdb; print([m for m in ('alembic', 'torch', 'rich', 'gymnasium', 'pandas', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
