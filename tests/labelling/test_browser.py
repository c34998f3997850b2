"""The label page in a browser: keys, undo, hostile text, a phone. Skipped where there is no Chromium or Playwright."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from deedrl.store.labels import PairLabel, read_labels

sync_api = pytest.importorskip("playwright.sync_api")
uvicorn = pytest.importorskip("uvicorn")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
PATIENCE_MS = 120_000


@pytest.fixture
def address(pairs, tmp_path: Path):
    from deedrl.labelling.app import LOOPBACK, LabelBook, label_app

    app = label_app(LabelBook(pairs, tmp_path / "labels.jsonl"), hosts=LOOPBACK)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


def opened(browser, address, **options):
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.fill("#rater", "anna")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pair")
    return page


def shows(page, done):
    sync_api.expect(page.locator("#progress")).to_have_text(f"{done} of 3", timeout=PATIENCE_MS)


def test_H11_labels_by_keyboard_undo_and_hostile_text(browser, address, pairs, tmp_path):
    page = opened(browser, address)
    errors: list[str] = []
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    for number, key in enumerate(("ArrowLeft", "t", "u", "ArrowRight", "s")):
        page.keyboard.press(key)
        shows(page, (1, 2, 1, 2, 3)[number])
        assert page.title() == "Which episode is better?", "what a model said ran as script"
        assert page.locator("img").count() == 0
    assert page.get_by_text("Every pair has a label of yours").is_visible()
    page.keyboard.press("t")  # there is nothing to choose from: the key does nothing
    found = [label for _, label in read_labels(tmp_path / "labels.jsonl", PairLabel)]
    assert [label.choice for label in found] == ["left", "tie", "undo", "right", "skip"]
    assert {label.left for label in found} == {pair.left.episode_id for pair in pairs}
    assert errors == []


def test_hostile_text_is_there_to_be_read(browser, address, pairs):
    page = opened(browser, address)
    done = 0
    while page.locator(".task").inner_text() != "Job of h":
        page.keyboard.press("s")
        done += 1
        shows(page, done)
    said = page.locator(".said").all_inner_texts()
    assert all("<script>document.title='taken'</script>" in text for text in said)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_every_button_can_be_hit(browser, address, scheme, tmp_path):
    page = opened(browser, address, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = [button.bounding_box() for button in page.locator(".choices button").all()]
    assert len(boxes) == 5
    assert all(box["height"] >= 40 and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
    left, right = (page.locator(".side").nth(n).bounding_box() for n in (0, 1))
    assert right["y"] > left["y"] + left["height"] - 1, "one below the other"
    page.screenshot(path=str(tmp_path / f"phone-{scheme}.png"))
    page.locator("button[value=left]").click()
    shows(page, 1)
