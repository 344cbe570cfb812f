"""A page server in a thread of the test process, and an HTTP client."""

import http.client
import json
import socket
import threading
import time
from urllib.parse import urlencode

import numpy as np
import pytest

import expdb
from expdb.serve.app import create_app
from expdb.serve.guard import Access
from expdb.serve.server import PageServer


class Answer:
    def __init__(self, response):
        self.status, self.body = response.status, response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)


class Site:
    """The pages of a database, on a port of this machine."""

    def __init__(self, location, access=None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = PageServer(create_app(location, access))
        sockets = [self._listener]
        self._thread = threading.Thread(target=self._server.run, args=(sockets,), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the server does not start"
            assert self._thread.is_alive(), "the server ended"
            time.sleep(0.01)

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, fields)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, **{"accept": "text/html", **headers})

    def post(self, path, data, **headers):
        return self.request("POST", path, urlencode(data), **headers)

    def close(self):
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def serve():
    sites = []

    def open_site(location, **access):
        sites.append(Site(location, Access(**access)))
        return sites[-1]

    yield open_site
    for site in sites:
        site.close()


def fill(db):
    """Store rollouts of language models, with groups, tokens, pictures, scores and leases."""
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    buffer.policy_version = 1
    for number in range(6):
        for step in range(3):
            is_last = step == 2
            messages = [
                {"role": "user", "content": f"Question **{number}**"},
                *[
                    {
                        "role": "assistant",
                        "content": f"Thought {k} of {number}",
                        "tool_calls": [{"function": {"name": "search", "arguments": '{"q": "x"}'}}],
                    }
                    for k in range(step + 1)
                ],
            ]
            if number == 3 and is_last:
                messages.append({"role": "tool", "content": "Error: no such file"})
            buffer.store(
                task_id=f"t{number // 3}", group_id=f"g{number // 3}", episode_id=f"e{number}",
                messages=messages, reward=float(number % 2) if is_last else 0.0,
                terminated=is_last, policy_version=number // 3, n=step,
                screen=np.full((16, 16, 3), 40 * step, np.uint8),
                prompt_ids=np.arange(4, dtype=np.int32), output_ids=np.arange(5, dtype=np.int32),
                output_mask=np.array([1, 1, 1, 0, 1], bool),
                logprobs=np.linspace(-2, 0, 5, dtype=np.float32),
                versions=number // 3 + np.array([0, 0, 1, 1, 1], np.int32),
            )  # fmt: skip
    buffer.score(episode_id="e0", name="quality", value=0.5, by="judge")
    consumer = buffer.consumer("learner", seed=0)
    lease = consumer.lease(4, sampler=expdb.Prioritized(initial=1.0))
    lease.acknowledge(7)
    return buffer


@pytest.fixture
def filled(open_db):
    db = open_db()
    fill(db)
    return db


@pytest.fixture
def site(filled, location, serve):
    return serve(location)
