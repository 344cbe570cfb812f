"""Rules for the source: which module may import which, its size, and what no file may contain."""

import ast
import collections
import graphlib
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import expdb

PACKAGE = Path(__file__).parent.parent / "expdb"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every node of a file, parsed once for all rules."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module a file imports, at any depth, in full."""
    modules: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return frozenset(modules)


def complaints(rule):
    """What a rule, a generator of complaints, says of every file of the package."""
    return [
        f"{path.relative_to(PACKAGE)}: {complaint}"
        for path in FILES
        for complaint in rule(path, path.relative_to(PACKAGE), imports(path))
    ]


# The layers of docs/explanation/architecture.md, from the lowest up, and the layers below that
# each may import from.
# Each of these may import the ones before it.
UTILITIES = ("names", "errors", "displays", "keywords", "process", "checks")
BELOW = {
    "replay.ragged": set(),
    "replay": {"replay.ragged"},
    "chunks": {"replay.ragged"},
    "sql": set(),
    "batch": set(),
    "writers": {"storage.writing", "storage.ledger", "storage"},
    "storage": {"chunks", "sql"},
    "storage.reading": {"storage", "chunks", "sql", "replay.ragged"},
    "storage.priorities": {"storage.reading", "storage", "sql"},
    "storage.annotate": {"storage.reading", "storage", "chunks", "sql"},
    "storage.scores": {"storage.writing", "storage.reading", "storage", "chunks", "sql"},
    "storage.writing": {"storage.ledger", "storage.reading", "storage", "chunks", "sql"},
    "storage.upkeep": {"storage.ledger", "storage.reading", "storage", "chunks", "sql"},
    "memory": {
        "replay",
        "storage.ledger", "storage.priorities", "storage.reading", "storage", "chunks", "sql",
    },
    "storage.ledger": {"storage", "chunks", "sql", "replay"},
    "sampling": {
        "memory", "storage.annotate", "storage.ledger", "storage.priorities", "storage.reading",
        "storage", "chunks", "sql", "replay", "replay.ragged", "batch",
    },
    "consumers": {
        "sampling", "memory", "batch", "replay", "sql", "storage", "storage.ledger",
        "storage.reading", "storage.scores",
    },
    "archive": {
        "batch", "chunks", "sql", "storage", "storage.ledger", "storage.reading",
        "storage.upkeep", "storage.writing",
    },
    "buffer": {
        "writers", "consumers", "archive", "sampling", "memory", "batch", "replay", "sql", "chunks",
        "storage", "storage.annotate", "storage.ledger", "storage.reading", "storage.scores",
        "storage.writing", "storage.upkeep",
    },
    "export": {"buffer", "archive", "batch", "storage.reading"},
    "database": {
        "buffer", "memory", "sql", "chunks", "storage", "storage.reading", "storage.writing",
        "storage.upkeep",
    },
}  # fmt: skip
INTERFACES = {
    "cli", "serve", "text", "plot", "testing", "integrations", "formats", "copying", "api",
    "__init__", "__main__",
}  # fmt: skip


def layer_of(module):
    """Return the layer of a module of expdb, None for the package itself."""
    parts = module.split(".")[1:]
    layers = (*UTILITIES, *BELOW, *INTERFACES)
    fitting = [name for name in layers if parts[: name.count(".") + 1] == name.split(".")]
    return max(fitting, key=len, default=None)


def layers_below(layer):
    """Return the layers that a layer may import from, or None if it may import from each."""
    if layer in UTILITIES:
        return UTILITIES[: UTILITIES.index(layer)]
    return None if layer in INTERFACES else {*BELOW[layer], *UTILITIES}


def test_modules_import_only_from_layers_below():
    modules = {f"expdb.{name.removesuffix('.py').replace('/', '.')}" for name in NAMES}

    def rule(path, relative, named):
        own = layer_of(f"expdb.{str(relative).removesuffix('.py').replace('/', '.')}")
        assert own is not None, f"{relative} is in no layer; add it to BELOW and to architecture.md"
        below = layers_below(own)
        for name in named & {*modules, *(module.removesuffix(".__init__") for module in modules)}:
            if below is not None and layer_of(name) not in (own, None, *below):
                yield f"imports {name}"

    assert complaints(rule) == []


def test_libraries_stay_in_their_rooms():
    arrow = (  # tables go there
        "batch.py", "buffer.py", "database.py", "export.py", "parquet.py", "retention.py",
        "batches.py", "timestamps.py", "sql.py", "exported_table.py",
    )  # fmt: skip

    def rule(path, relative, named):
        roots = {name.split(".")[0] for name in named}
        if relative.parts[0] not in ("storage", "sql"):
            yield from roots & {"sqlalchemy", "sqlite3", "alembic", "psycopg"}
        if relative.parts[0] not in ("chunks", "formats") and path.name not in (*arrow, "adhoc.py"):
            yield from roots & {"pyarrow"}

    assert complaints(rule) == []


def test_randomness_stays_in_replay_and_sampling():
    def rule(path, relative, named):
        below = relative.parts[0] in ("storage", "chunks", "memory", "sql")
        # The jitter of retries, and the number of a file, are no sampling.
        if below and path.parts[-2:] not in (("sqlite", "connection.py"), ("sql", "engine.py")):
            yield from (name for name in named if name.split(".")[0] == "random")
            if "np.random" in path.read_text():
                yield "np.random"

    assert complaints(rule) == []


def test_only_memory_assigns_to_its_arrays():
    def rule(path, relative, named):
        for node in nodes_of(path):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            outside = relative.parts[0] not in ("memory", "chunks")
            for target in map(ast.unparse, targets):
                if outside and ".columns[" in target and "layout.columns[" not in target:
                    yield f"line {node.lineno}"

    assert complaints(rule) == []


def test_records_are_keys_and_nothing_is_known_by_its_id():
    def rule(path, relative, named):
        if relative.name == "weak_registry.py":  # weak references to what cannot be hashed
            return
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "id" and node.args:
                yield f"line {node.lineno}: id()"
            is_dict = isinstance(node, ast.Attribute) and node.attr == "__dict__"
            if is_dict and relative.parts[0] != "integrations":
                yield f"line {node.lineno}: __dict__"

    assert complaints(rule) == []


# Code lines per folder, without comments, docstrings and blank lines. A folder may shrink freely;
# enter a larger number in the commit that needs it, with the reason in the body of the commit.
CODE_LINES = {
    "archive": 862, "chunks": 2_331, "cli": 1_933, "consumers": 1_520,
    "formats": 3_446, "integrations": 8_250, "memory": 2_232, "process": 310, "replay": 2_738,
    "root": 2_843, "sampling": 3_224, "serve": 1_569, "sql": 4_547,
    "storage": 10_789, "text": 267, "writers": 704,
}  # fmt: skip


def code_lines(path):
    """Return the number of lines that contain code."""
    no_code = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENCODING, tokenize.ENDMARKER,
    }  # fmt: skip
    with tokenize.open(path) as file:
        lines = {
            line
            for token in tokenize.generate_tokens(file.readline)
            if token.type not in no_code
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(lines) - docstring_lines(path)


def test_folders_do_not_grow():
    sizes = collections.Counter()
    for path in FILES:
        sizes[path.relative_to(PACKAGE).parent.parts[:1] or ("root",)] += code_lines(path)
    found = {folder: lines for (folder,), lines in sizes.items()}
    assert found.keys() == CODE_LINES.keys()
    assert [
        f"expdb/{folder} has {lines} code lines, at most {CODE_LINES[folder]} are allowed; remove "
        "code, or enter the number in CODE_LINES and give the reason in the body of the commit"
        for folder, lines in found.items()
        if lines > CODE_LINES[folder]
    ] == []


LONG_FILES = {"buffer.py": 896}  # half of it are signatures


def docstring_lines(path):
    """Return the number of lines of all docstrings of a file."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        node.body[0]
        for node in nodes_of(path)
        if isinstance(node, documented) and ast.get_docstring(node)
    ]
    return sum(text.end_lineno - text.lineno + 1 for text in texts)


def test_files_are_short_without_their_docstrings():
    def rule(path, relative, named):
        lines = len(path.read_text().splitlines()) - docstring_lines(path)
        if lines > LONG_FILES.get(str(relative), 530):
            yield f"{lines} lines"

    assert complaints(rule) == []


def private_names(path, named):
    """Return the names of expdb in a file that are not public."""
    public = {"expdb.errors", "expdb.formats", *[f"expdb.{name}" for name in expdb.__all__]}
    used = re.findall(r"\berrors\.([A-Za-z]\w*)", path.read_text())
    errors = {f"errors.{name}" for name in {*used} - {*expdb.errors.__all__}}
    return {name for name in named if name.startswith("expdb.")} - public | errors


def test_interfaces_use_only_public_names():
    interfaces = ("expdb.export", "expdb.plot", "expdb.cli", "expdb.serve", "expdb.text")

    def rule(path, relative, named):
        if relative.parts[0] in ("cli", "serve", "text", "plot.py", "testing.py"):
            names = private_names(path, named)
            return [name for name in names if not name.startswith(interfaces)]
        return []

    assert complaints(rule) == []


def test_integrations_use_the_public_names_and_nobody_imports_them():
    def rule(path, relative, named):
        ours = {name for name in named if name.startswith("expdb.integrations")}
        is_integration = relative.parts[0] == "integrations"
        return private_names(path, named) - ours if is_integration else ours

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
    list(graphlib.TopologicalSorter(arrows).static_order())  # raises CycleError with the loop


def test_nothing_stored_can_be_executed():
    def rule(path, relative, named):
        tree, used = nodes_of(path)[0], {name.split(".")[0] for name in named}
        text = ast.unparse(tree)
        if path.name == "database.py":  # a pickled handle names the SQLite library to open it with
            (reopened,) = (node for node in tree.body if getattr(node, "name", "") == "_reopened")
            assert text.count("importlib.") == ast.unparse(reopened).count("importlib.") == 1
            used -= {"importlib"}
        if relative.parts == ("__init__.py",):  # imports modules of this package only
            ours = r"importlib\.(?:util\.find_spec|import_module)\(f?'expdb\."
            counts = [len(re.findall(what, text)) for what in (ours, r"importlib\.\w+[.(]")]
            assert counts == [4, 4]
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
        for node in nodes_of(path):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or (len(node.body) == 1 and isinstance(node.body[0], ast.Pass))
            ):
                yield f"line {node.lineno}"

    assert complaints(rule) == []


def test_an_import_of_buffers_brings_in_neither_alembic_nor_frameworks_nor_formats():
    code = (
        "import sys, expdb.buffer; unwanted = 'alembic', 'torch', 'rich', 'gymnasium', 'pandas', "
        "'click', 'pyarrow.compute', 'pyarrow.csv', 'pyarrow.parquet', 'expdb.formats'; "
        "print([m for m in unwanted if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_work_under_a_lock_goes_through_locked():
    """An interrupt may come at the line where a block is left, before the lock is given back."""

    def rule(path, relative, named):
        if relative.name == "locks.py" or relative.parts[0] == "integrations":
            return
        for node in nodes_of(path):
            if isinstance(node, ast.With) and any(
                ast.unparse(item.context_expr).endswith(("lock", "_watching"))
                for item in node.items
            ):
                if node.body[-1].end_lineno == node.lineno:  # hot, and spelled out on one line
                    continue
                yield f"line {node.lineno}"

    assert complaints(rule) == []


PAGES = (
    PACKAGE.parent / "docs" / "explanation" / "architecture.md",
    PACKAGE.parent / "CONTRIBUTING.md",
)


def test_every_file_and_name_in_the_pages_for_contributors_is_there():
    sources = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    definitions = set(
        re.findall(r"(?:class|def) (\w+)|^(\w+)(?::[^=\n]*)? = ", sources, re.MULTILINE)
    )
    names = {name for pair in definitions for name in pair}
    for page in PAGES:
        for reference in re.findall(r"`([^`\n]+)`", page.read_text()):
            path = reference.strip("/")
            if re.fullmatch(
                r"[\w/.]+\.(py|sql|md)|(expdb|migrations|tests|docs)/[\w/]+/?", reference
            ):
                root = PACKAGE.parent
                anywhere = () if reference.startswith(("expdb/", "tests/")) else PACKAGE.rglob(path)
                places = (root / path, PACKAGE / path, *anywhere)
                assert any(place.exists() for place in places), f"{page.name}: {reference}"
            elif re.fullmatch(r"[A-Z]\w+(\.\w+)?|[a-z]\w+\.[a-z]\w+", reference):
                for name in reference.split("."):
                    assert (
                        name in names
                        or (PACKAGE / f"{name}.py").exists()
                        or any(PACKAGE.rglob(f"{name}.py"))
                    ), f"{page.name}: {reference}"


def test_tests_that_use_a_database_module_run_on_both_databases():
    """Such tests import from expdb.sql or expdb.storage, or open a server."""
    tests = PACKAGE.parent / "tests"
    fixtures = {"location", "open_db", "db", "buffer"}
    missing = []
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(("expdb.sql", "expdb.storage"))
            for alias in node.names
        }
        is_marked = re.search(
            r"^pytestmark = .*(_databases|skipif)", path.read_text(), re.MULTILINE
        )
        users = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith("test_")
            and fixtures & {argument.arg for argument in node.args.args}
        }
        for name, node in users.items() if not is_marked else ():
            names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
            decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
            if names & (imported | {"postgresql", "Server"}) and "_database" not in decorators:
                missing.append(f"{path.name}: {name}")
    assert missing == []
