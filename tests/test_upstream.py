"""The suite of memmap-replay-buffer itself, from its source package, with the import changed."""

import os
import subprocess
import sys
import tarfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # pip downloads, torch is imported

PACKAGE = "memmap-replay-buffer==0.2.3"
# Not of what a database has: films, web pages, HDF5.
OTHERS = ("test_frontend.py", "test_video.py", "test_replay_buffer_h5py.py")
# These look inside: one sets the index of the step, one reads the array's file.
WHITE_BOX = ("test_store_batch_circular", "test_uint8_storage")

ALIAS = """
import sys, types
import expdb.integrations.memmap as ours

def alias(name, **more):
    module = types.ModuleType(name)
    module.__dict__.update({**vars(ours), **more})
    sys.modules[name] = module

alias("memmap_replay_buffer")
alias("memmap_replay_buffer.replay_buffer")
alias("memmap_replay_buffer.replay_buffer_h5py", ReplayBufferH5PY=ours.ReplayBuffer)
sys.modules.setdefault("h5py", types.ModuleType("h5py"))
"""


def test_the_suite_of_memmap_replay_buffer_passes(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: run `python3 dev.py test --torch`")
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
         "--no-binary", ":all:", "--dest", tmp_path, PACKAGE],
        capture_output=True, text=True,
    )  # fmt: skip
    found = list(tmp_path.glob("*.tar.gz"))
    if not found:
        pytest.skip(f"pip finds no source package of {PACKAGE}: {fetched.stderr[-200:]}")
    with tarfile.open(found[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (tests,) = tmp_path.glob("*/tests")
    for name in OTHERS:
        (tests / name).unlink()
    (tests / "conftest.py").write_text(ALIAS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests,
         "-k", " and ".join(f"not {name}" for name in WHITE_BOX), tests],
        capture_output=True, text=True, cwd=tests, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "35 passed" in done.stdout
