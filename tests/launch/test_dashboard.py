"""The page of a run, in a real browser; and what becomes of a run whose page does not work."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from .launched import PATIENCE, Launched, World, eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TOKEN = "0123456789abcdef"
SOON = 5.0  # seconds; within one on a machine that does nothing else
PHONE = {"width": 390, "height": 844}
# What a fit would tell, without keras, which takes longer to import than all of this.
TRAINS = """
    step = 0
    while not (Path(os.environ["SCENE"]) / "word-enough").exists():
        step += 1
        say(step, "COMPUTING", "piece 1")
        time.sleep(0.02)
        say(step, "EXCHANGING")
        me.count(64, 2)
        me.show({"loss": 2.0 / (1 + step), "accuracy": float("nan")})
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium (`make test` does, where it may)")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=CHROMIUM, headless=True, args=list(FLAGS)
        )
        context.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)

        def open_page(address: str) -> Page:
            page = context.new_page()
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
            page.goto(address)
            return page

        troubles: list[str] = []
        yield open_page
        context.close()
    # A refusal and a server that is gone are a part of the scene; a script that fails or is forbidden is not.
    assert not [trouble for trouble in troubles if not trouble.startswith("Failed to load resource")]


def address_of(run: Launched) -> str:
    found: list[str] = []
    eventually(lambda: found.extend(re.findall(r"page: (http://\S+)", run.err)) or found, "an address")
    return found[0]


def points(page: Page) -> int:
    return int(page.locator("#rate-chart").get_attribute("data-points") or 0)


def more_points(page: Page, than: int) -> int:
    """Waits in the browser's own time, which it needs to draw."""
    for _ in range(int(PATIENCE * 10)):
        if points(page) > than:
            return points(page)
        page.wait_for_timeout(100)
    raise AssertionError("the chart stands still")


def test_the_page_shows_members_a_loss_moving_charts_and_the_end(world: World, browser) -> None:
    run = world.run(TRAINS, "-n", 3, "--max-restarts", 0, "--dashboard", "--no-live")
    page = browser(address_of(run))
    expect(page.locator("#state")).to_have_text("training")
    assert "#" not in page.url  # the token is no part of what is shown, bookmarked or sent on
    for number in range(3):
        expect(page.locator(f'.member[data-id="worker-{number}"]')).to_have_attribute("data-state", "training")
    before = more_points(page, than=1)
    os.kill(run.pid("worker-2"), signal.SIGKILL)
    lost = page.locator('.member[data-id="worker-2"]')
    expect(lost).to_have_attribute("data-state", "lost", timeout=SOON * 1000)
    expect(page.locator("#workers-note")).to_have_text("1 lost, survived")
    expect(page.locator("#story")).to_contain_text("worker-2 (pid")
    more_points(page, than=before)
    expect(page.locator("#timeline path").first).to_be_attached()
    page.locator("#timeline").hover(position={"x": 300, "y": 8})  # what the first worker did there
    expect(page.locator("#timeline .tip")).to_have_text(
        re.compile(r"(computing|exchanging gradients), step [\d,]+: .* ms")
    )
    page.locator("#checkpoint").click()
    expect(page.locator("#answer")).to_contain_text("this run writes no checkpoints")
    world.tell("enough")
    assert run.wait() == 0
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.locator("#notice")).to_have_text("Every worker finished its script.")
    expect(page.locator("#footer")).to_contain_text("shoal dashboard")


def test_its_buttons_scale_and_drain_and_it_fits_a_phone_in_the_dark(world: World, browser) -> None:
    run = world.run(TRAINS, "-n", "1:3", "--dashboard", "--no-live")
    page = browser(address_of(run))
    expect(page.locator("#state")).to_have_text("training")
    page.locator("#fewer").click()
    page.locator("#scale").click()
    expect(page.locator("#answer")).to_contain_text("2")
    drain = page.locator('.member[data-id="worker-1"] button')
    drain.click()
    expect(drain).to_have_text("sure?")
    drain.click()
    expect(page.locator("#answer")).to_have_text("worker-1 leaves after its step")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "nothing is cut off"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    world.tell("enough")
    assert run.wait() == 0


def test_a_page_whose_process_is_killed_is_said_and_harms_nothing(world: World) -> None:
    run = world.run(TRAINS, "-n", 2, "--dashboard", 0, "--no-live", SHOAL_DASHBOARD_TOKEN=TOKEN)
    address = address_of(run)
    metrics = Request(address.partition("#")[0] + "metrics", headers={"authorization": f"Bearer {TOKEN}"})

    def trains() -> bool:
        with urlopen(metrics, timeout=PATIENCE) as answer:
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's own
            return re.search(r"^shoal_step\S+ [1-9]", answer.read().decode(), re.MULTILINE) is not None

    eventually(trains, "a step")
    (page,) = [one for one in world.processes() if "shoal.dashboard.process" in one.cmdline()]
    page.kill()
    eventually(lambda: "was killed by SIGKILL; the run goes on without it" in run.err, "that it is gone")
    world.tell("enough")
    assert run.wait() == 0
    assert TOKEN in run.err
    assert run.err.count(TOKEN) == 1  # told once
