"""Takes the pictures of the dashboard in docs/pictures again, from a real run of four workers of which one is killed.

python bench/pictures.py [--folder docs/pictures] [--seconds 20]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, Playwright, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SHOAL = [sys.executable, "-m", "shoal"]
LIMIT = 120.0  # seconds for something to happen
WIDE, PHONE = (1180, 1010), (390, 1150)
VICTIM = "worker-2"
COLOURS = 128  # of a picture: there are few, and a file with a palette is a third as large
SCRIPT = """
import sys
from pathlib import Path

import keras
import numpy as np

keras.utils.set_random_seed(7)
random = np.random.default_rng(7)
x = random.normal(size=(4096, 64)).astype("float32")
y = (np.sin(x[:, :8]).sum(axis=1) + 0.5 * random.normal(size=4096) > 0).astype("float32")


class EndsWhenTold(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = Path(sys.argv[1]).exists()


model = keras.Sequential([keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.002), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=256, epochs=1000, verbose=0, callbacks=[EndsWhenTold()])
"""


class Shown:
    """A run, and its page."""

    def __init__(self, home: Path, stack: contextlib.ExitStack) -> None:
        (home / "r").mkdir(mode=0o700)
        script = home / "train.py"
        script.write_text(SCRIPT)
        self._log = home / "log"
        self.enough = home / "enough"
        self.environ = {**os.environ, "XDG_RUNTIME_DIR": str(home / "r"), "XDG_STATE_HOME": str(home / "state")}
        options = ["-n", "4", "--threads", "1", "--backend", "torch", "--dashboard", "--no-live"]
        options += ["--checkpoint", str(home / "saved"), "--checkpoint-every", "150steps"]
        with self._log.open("wb") as log:
            command = [*SHOAL, "run", *options, str(script), str(self.enough)]
            self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, cwd=home)
        stack.callback(self._end)
        wait_for(lambda: "page: " in self._log.read_text(), "it has a page")
        self.address = re.findall(r"page: (http://\S+)", self._log.read_text())[0]

    def kill(self, member: str) -> None:
        told = subprocess.run([*SHOAL, "status", "--json"], env=self.environ, capture_output=True, check=True)
        (pid,) = [one["pid"] for run in json.loads(told.stdout) for one in run["members"] if one["id"] == member]
        os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)


def wait_for(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not found():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


def take(page: Page, path: Path, size: tuple[int, int] | None) -> None:
    """`size` None: all of the page."""
    page.mouse.move(0, 0)
    if size is not None:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.wait_for_timeout(2500)  # it is drawn anew
    taken = Image.open(io.BytesIO(page.screenshot(full_page=size is None)))
    taken.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path)


def show(folder: Path, seconds: float, play: Playwright, stack: contextlib.ExitStack) -> None:
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pictures-")))
    run = Shown(home, stack)
    browser = play.chromium.launch_persistent_context(
        home / "profile", executable_path=CHROMIUM, headless=True, args=list(FLAGS)
    )
    stack.callback(browser.close)
    page = browser.new_page()
    page.set_default_timeout(LIMIT * 1000)
    expect.set_options(timeout=LIMIT * 1000)
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.goto(run.address)
    expect(page.locator("#timeline path").first).to_be_attached()
    page.wait_for_timeout(1000 * seconds)
    take(page, folder / "dashboard-live.png", WIDE)
    run.kill(VICTIM)
    expect(page.locator('.member[data-id="worker-4"]')).to_have_attribute("data-state", "training")
    page.wait_for_timeout(1000 * seconds)
    take(page, folder / "dashboard-after-a-kill.png", WIDE)
    page.emulate_media(color_scheme="dark")
    take(page, folder / "dashboard-dark.png", WIDE)
    page.emulate_media(color_scheme="light")
    take(page, folder / "dashboard-phone.png", PHONE)
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    run.enough.touch()
    expect(page.locator("#state")).to_have_text("finished")
    page.wait_for_timeout(1000)
    take(page, folder / "dashboard-finished.png", None)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=ROOT / "docs" / "pictures")
    options.add_argument("--seconds", type=float, default=20.0, help="before the kill, and after it")
    given = options.parse_args()
    if CHROMIUM is None:
        options.error("needs a browser: apt-get install chromium")
    with contextlib.ExitStack() as stack:
        show(given.folder, given.seconds, stack.enter_context(sync_playwright()), stack)


if __name__ == "__main__":
    main()
