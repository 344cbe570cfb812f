"""Tests of the command `serve`."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main


@pytest.fixture
def path(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        db.buffer("train").store(task_id="t", episode_id="e", n=1, terminated=True)
    return str(tmp_path / "runs.db")


def start(*arguments):
    command = [sys.executable, "-m", "expdb", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, re.search(r"http://\S+", line)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pages_are_served_until_a_signal(path, number):
    process, url = start(path)
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert "Newest episodes" in answer.read().decode()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert errors == ""
    assert process.returncode in (0, 130, -number)


def test_write_prints_an_address_with_a_random_token(path):
    process, url = start(path, "--write")
    try:
        assert re.search(r"/\?token=[\w-]{32}$", url)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.split("?")[0], timeout=20)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert 'href="/b/train' in opener.open(url, timeout=20).read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--host", "0.0.0.0"), "also pass --token"), (("--host", "box.example"), "also pass --token"),
     (("--token", "short"), "at least 8 letters"), (("--port", "70000"), "--port")],
)  # fmt: skip
def test_wrong_options_are_refused_before_the_server_starts(path, arguments, message):
    done = CliRunner().invoke(main, ["serve", path, *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_port_in_use_is_an_error(path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = CliRunner().invoke(main, ["serve", path, "--port", port])
    assert done.exit_code == 1
    assert "pass another --host or --port" in done.stderr


def test_missing_packages_are_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delattr("expdb.serve", raising=False)  # monkeypatch restores the attribute
    for name in [name for name in sys.modules if name.startswith("expdb.serve")]:
        monkeypatch.delitem(sys.modules, name)
    done = CliRunner().invoke(main, ["serve", path])
    assert done.exit_code == 1
    assert "pip install 'expdb[serve]'" in done.stderr
