"""Check the built site in Chromium: `python3 dev.py docs --browser`.

The program loads every page at the width of a desktop and of a phone, saves a screenshot of each
in `docs/_build/screenshots`, and runs the queries in `SEARCHES`. It exits with status 1 if a page
logs an error, is wider than its window or sends a request to another host, or if the first result
of a query is not the expected page.
"""

import functools
import http.server
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QEventLoop, QTimer, QUrl
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineUrlRequestInfo,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

BUILD = Path(__file__).parent / "_build"
SIZES = ((1280, 900), (390, 844))  # pixels
# Queries, each with the page that must be the first result, or None if any page may be the first.
SEARCHES = {
    "update_priorities": None,
    "max_times_sampled": None,
    "whole_episodes": None,
    "notebook jupyter": "follow-a-run-from-a-notebook.html",
    "questions trained step 120": "answer-questions-about-training.html",
    "failed tool calls": "answer-questions-about-training.html",
    "prioritised prioritized replay": "use-prioritized-replay.html",
    "read only access": "give-read-access.html",
    "stack atari frames": "stack-frames.html",
}
PAINTING = 150  # milliseconds from the end of loading to a painted page
SEARCHING = 3_000  # milliseconds
TIMEOUT = 20_000  # milliseconds


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging requests."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class HostCheck(QWebEngineUrlRequestInterceptor):
    """Records requests to other hosts as problems."""

    def __init__(self, host: str, problems: list[str]):
        super().__init__()
        self._host, self._problems = host, problems

    def interceptRequest(self, info: QWebEngineUrlRequestInfo) -> None:
        """Record a problem if the request leaves the site."""
        url = info.requestUrl()
        if url.scheme() in ("http", "https") and url.authority() != self._host:
            self._problems.append(f"request to {url.toString()}")


class SitePage(QWebEnginePage):
    """Records error messages of the console as problems."""

    def __init__(self, profile: QWebEngineProfile, problems: list[str]):
        super().__init__(profile)
        self._problems = problems

    def javaScriptConsoleMessage(
        self, level: Any, message: str | None, line: int, source: str | None
    ) -> None:
        """Record a problem if the level is that of errors."""
        if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
            self._problems.append(f"{self.url().path()}: {message}")


def wait(start: Callable[[Callable[[Any], None]], Any], milliseconds: int = TIMEOUT) -> Any:
    """Call `start` with a callback; return the argument of the callback, or None after a time."""
    loop, arguments = QEventLoop(), list[Any]()

    def finish(argument: Any = None) -> None:
        arguments.append(argument)
        loop.quit()

    start(finish)
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()
    return arguments[0] if arguments else None


def evaluate(page: QWebEnginePage, script: str) -> Any:
    """Return the value of a JavaScript expression in a page."""
    return wait(lambda finish: page.runJavaScript(script, finish))


def load(page: QWebEnginePage, url: str, painting: int = PAINTING) -> bool:
    """Load a page, and return whether it was loaded."""

    def start(finish: Callable[[Any], None]) -> None:
        page.loadFinished.connect(finish)
        page.load(QUrl(url))

    is_loaded = bool(wait(start))
    page.loadFinished.disconnect()
    wait(lambda finish: None, painting)
    return is_loaded


def check(site: str, host: str) -> list[str]:
    """Return the problems of all pages and searches."""
    problems: list[str] = []
    profile, host_check = QWebEngineProfile(), HostCheck(host, problems)
    profile.setUrlRequestInterceptor(host_check)
    view, page = QWebEngineView(), SitePage(profile, problems)
    view.setPage(page)
    view.show()
    screenshots = BUILD / "screenshots"
    screenshots.mkdir(exist_ok=True)
    paths = sorted(file.relative_to(BUILD / "html") for file in BUILD.glob("html/**/*.html"))
    for width, height in SIZES:
        view.resize(width, height)
        for path in paths:
            if not load(page, f"{site}/{path.as_posix()}"):
                problems.append(f"{path} was not loaded")
            excess = evaluate(page, "document.documentElement.scrollWidth - window.innerWidth")
            if excess is None or excess > 0:
                problems.append(f"{path} is {excess} pixels wider than {width}")
            view.grab().save(str(screenshots / f"{'-'.join(path.parts)}-{width}.png"))
    for query, expected_page in SEARCHES.items():
        load(page, f"{site}/search.html?q={query.replace(' ', '+')}", SEARCHING)
        first_result = evaluate(page, "document.querySelector('#search-results li a')?.href")
        if first_result is None or (expected_page or "") not in first_result:
            problems.append(f"the first result of the search for {query!r} is {first_result}")
    page.deleteLater()
    print(f"{len(paths)} pages at {len(SIZES)} widths, {len(SEARCHES)} searches")
    return problems


def main() -> None:
    """Serve and check the site; print the problems, and exit with status 1 if there are any."""
    handler = functools.partial(QuietHandler, directory=BUILD / "html")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        application = QApplication(sys.argv[:1])  # must live as long as the pages
        problems = check(f"http://{host}", host)
        application.processEvents()
        server.shutdown()
    print(f"{len(problems)} problems", *problems, sep="\n")
    sys.stdout.flush()
    os._exit(bool(problems))  # QtWebEngine may crash while the interpreter ends


if __name__ == "__main__":
    main()
