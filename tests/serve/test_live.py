"""Tests of the event stream that updates open pages."""

import http.client
import socket
import threading
import time

import pytest


class Events(threading.Thread):
    """Reads the events of a buffer until it is closed."""

    def __init__(self, site):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
        self.connection.connect()
        self.socket = self.connection.sock
        self.connection.request("GET", "/b/train/events")
        self.response = self.connection.getresponse()
        self.count = 0
        self.start()

    def run(self):
        for line in self.response:
            if line.startswith(b"data: "):
                self.count += 1

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self.response.close()
        self.connection.close()

    def wait_for(self, count):
        deadline = time.monotonic() + 10
        while self.count < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.count >= count


@pytest.fixture
def events(site):
    reader = Events(site)
    assert reader.response.getheader("content-type").startswith("text/event-stream")
    yield reader
    reader.close()


def test_an_event_follows_each_change(filled, events):
    events.wait_for(1)
    buffer = filled.buffer("train")
    changes = [
        lambda: buffer.store(task_id="t", n=1),
        lambda: buffer.update({"episode_id": "e0"}, tags={"a": 1}),
        lambda: buffer.consumer("learner").lease(1),
        lambda: setattr(buffer, "policy_version", 5),
    ]
    for number, change in enumerate(changes):
        change()
        events.wait_for(2 + number)


def test_no_event_is_sent_without_a_change(events):
    events.wait_for(1)
    time.sleep(1.2)
    assert events.count == 1


def test_the_server_stops_while_pages_are_open(filled, location, serve):
    site = serve(location)
    reader = Events(site)
    reader.wait_for(1)
    site.close()
    reader.join(10)
    reader.response.close()
    reader.connection.close()
