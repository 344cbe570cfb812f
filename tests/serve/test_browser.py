"""Tests of the pages in headless Chromium: accessibility, layout, keys and requests."""

import shutil
import threading
from importlib import resources

import numpy as np
import pytest
from serve.test_render import HOSTILE

import expdb

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
    ),
]
PAGES = (
    "/b/train", "/b/train/episodes", "/b/train/episodes?q=nope+%3D+1", "/b/train/e/e3",
    "/b/train/group?task=t1&group=g1", "/b/train/ledger", "/b/train/ledger/learner/0",
    "/b/train/p/0", "/b/train/random", "/sql?q=SELECT+position,+reward+FROM+experience",
)  # fmt: skip


class Page:
    """A browser page that records messages, errors, dialogs and requests to other hosts."""

    def __init__(self, browser, url, **options):
        self.url, self.problems = url, []
        self.page = browser.new_context(**options).new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", self._check)

    def _dismiss(self, dialog):
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _check(self, request):
        if not request.url.startswith(self.url):
            self.problems.append(f"request: {request.url}")

    def open(self, path, wait=300):
        self.page.goto(self.url + path)
        self.page.wait_for_timeout(wait)
        return self.page


@pytest.fixture
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def axe():
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible_and_fit_their_window(site, browser, axe, scheme, width):
    opened = Page(
        browser, site.url, color_scheme=scheme, viewport={"width": width, "height": 800}
    )  # fmt: skip
    for path in PAGES:
        page = opened.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page.evaluate(axe)
        result = page.evaluate("axe.run()")
        serious = [
            (violation["id"], [node["html"][:200] for node in violation["nodes"]][:3])
            for violation in result["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == [], path
    problems = [problem for problem in opened.problems if "400 (Bad Request)" not in problem]
    assert problems == []


def test_hostile_text_is_not_executed(tmp_path, serve, browser):
    location = str(tmp_path / "hostile.db")
    with expdb.open(location, run="<script>alert('run')</script>") as db:
        buffer = db.buffer("<img src=x onerror=alert(1)>")
        for number, text in enumerate(HOSTILE):
            text = text.replace("\x00", "")
            name = text[:200]
            buffer.store(
                task_id=name, task_name=name, episode_id=f"{number} {name}", group_id=name,
                agent_id=name, pre_agent=name, tags={"tag": text[:5000]}, reward=1.0,
                episode_tags={"tag": text[:5000]}, terminated=True, note=text,
                messages=[
                    {"role": name or "x", "name": name, "content": text},
                    {"role": "assistant", "content": [{"type": name, "text": text}],
                     "tool_calls": [{"function": {"name": name, "arguments": text}}]},
                    {"role": "tool", "content": text},
                ],
            )  # fmt: skip
        consumer = buffer.consumer("<svg onload=alert(1)>", seed=0)
        consumer.lease(len(HOSTILE)).acknowledge(1)
    site = serve(location)
    opened = Page(browser, site.url)
    page = opened.open("/")
    paths = {"/", "/sql?q=SELECT+*+FROM+experience"}
    seen = set()
    while paths - seen and len(seen) < 130:
        path = sorted(paths - seen)[0]
        seen.add(path)
        page = opened.open(path, wait=50)
        for details in page.query_selector_all("details:not([open]) > summary")[:3]:
            if details.is_visible():
                details.click()
        links = page.eval_on_selector_all("main a, nav a", "all => all.map(a => a.href)")
        paths |= {link[len(site.url) :].split("#")[0] for link in links
                  if link.startswith(site.url + "/") and "export" not in link
                  and "/sql." not in link and "draw" not in link}  # fmt: skip
    assert len(seen) > 100
    assert opened.problems == []


def test_a_page_shows_new_episodes(site, filled, browser):
    opened = Page(browser, site.url)
    page = opened.open("/b/train")
    page.wait_for_selector("#live.on")
    for number in range(3):
        # Store in another thread, because this thread processes the events of the browser.
        store = threading.Thread(
            target=filled.buffer("train").store,
            kwargs={"task_id": "t", "episode_id": f"new{number}", "n": 1, "terminated": True},
        )  # fmt: skip
        store.start()
        store.join()
        page.wait_for_selector(f"#newest >> text=new{number}")
    assert opened.problems == []


def test_keys_navigate_the_pages(site, browser):
    opened = Page(browser, site.url)
    page = opened.open("/b/train/episodes")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/e/e4")
    page.wait_for_timeout(200)
    page.keyboard.press("n")
    page.wait_for_url("**/e/e3")
    page.keyboard.press("p")
    page.wait_for_url("**/e/e4")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.id") == "step-0"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_url("**/episodes")
    page.keyboard.press("/")
    page.keyboard.type("reward > 0")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=reward*")
    assert "e5" in page.inner_text("#episodes")
    assert "e4" not in page.inner_text("#episodes")
    assert opened.problems == []


def test_the_steps_of_a_long_episode_are_loaded_as_the_reader_scrolls(
    open_db, location, serve, browser
):
    buffer = open_db().buffer("train")
    with buffer.episode("t", episode_id="long") as episode:
        for k in range(300):
            episode.append(n=k, screen=np.full((16, 16, 3), k % 256, np.uint8))
    opened = Page(browser, serve(location).url)
    page = opened.open("/b/train/e/long")
    first = page.locator(".step").count()
    assert first <= 80
    for _ in range(60):
        page.keyboard.press("End")
        page.wait_for_timeout(100)
        if page.locator(".step").count() == 300:
            break
    assert page.locator(".step").count() == 300
    opened.open("/b/train/e/long?from=250#step-250")
    assert page.locator("#step-250").is_visible()
    assert opened.problems == []
