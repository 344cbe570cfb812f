"""Run the test suites of the original packages with only the imports changed."""

import os
import re
import subprocess
import sys
import tarfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # pip downloads, torch is imported

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
OURS = {"DictReplayBuffer", "HerReplayBuffer", "NStepReplayBuffer", "ReplayBuffer"}


def suite_of(package, folder):
    """Download a source package and return the folder of its tests."""
    pytest.importorskip("torch", reason="torch is not installed: run `python3 dev.py test --torch`")
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
         "--no-binary", ":all:", "--dest", folder, package],
        capture_output=True, text=True,
    )  # fmt: skip
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"pip finds no source package of {package}: {fetched.stderr[-200:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    (tests,) = folder.glob("*/tests")
    return tests


def run(tests, excluded, *files):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests,
         "-k", " and ".join(f"not {name}" for name in excluded), *files],
        capture_output=True, text=True, cwd=tests, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_the_suite_of_memmap_replay_buffer_passes(tmp_path):
    tests = suite_of("memmap-replay-buffer==0.2.3", tmp_path)
    # These test features that a database does not have: videos, web pages and HDF5.
    for name in ("test_frontend.py", "test_video.py", "test_replay_buffer_h5py.py"):
        (tests / name).unlink()
    (tests / "conftest.py").write_text(ALIAS)
    # The first sets the index of the step, and the second reads the file of the array.
    done = run(tests, ("test_store_batch_circular", "test_uint8_storage"))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "35 passed" in done.stdout


def with_our_import(line):
    """Return a line that imports SB3's buffers as lines that import ours."""
    match = re.fullmatch(r"from (stable_baselines3[\w.]*) import (.*)", line)
    if not match:
        return line
    names = match[2].split(", ")
    theirs = [name for name in names if name not in OURS]
    ours = [name for name in names if name in OURS]
    lines = [f"from {match[1]} import {', '.join(theirs)}"] if theirs else []
    if ours:
        lines.append(f"from expdb.integrations.stable_baselines3 import {', '.join(ours)}")
    return "\n".join(lines)


def test_the_suites_of_stable_baselines3_pass(tmp_path):
    tests = suite_of("stable-baselines3==2.9.2", tmp_path)
    files = "test_buffers.py", "test_n_step_replay.py", "test_her.py"
    for name in files:
        lines = (tests / name).read_text().splitlines()
        (tests / name).write_text("\n".join(map(with_our_import, lines)))
    # These tests create SB3's own class, write to `dones`, and use `_current_ep_start`.
    private = "test_run", "test_nstep_no_terminations", "test_truncate_last_trajectory"
    done = run(tests, private, *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "132 passed" in done.stdout, done.stdout[-300:]
