"""What the corpus's runner calls the same, and what it does not: it must be able to fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .agreement import differences, lines, other_files, other_trend
from .header import Script, all_scripts, read
from .run import Ended, judge, steps_divided

PLAIN = """\
Epoch 1/2
\r1/8 ━━━━ 1s 90ms/step - accuracy: 0.1000 - loss: 2.5000\b\b\r8/8 ━━━━ 1s 9ms/step - accuracy: 0.5010 - loss: 0.8150
Time taken: 3.21s
Test loss: 0.4312
"""


def test_times_colours_and_states_of_a_progress_bar_do_not_matter() -> None:
    other = PLAIN.replace("90ms", "12ms").replace("3.21s", "9.87s").replace("1/8", "\x1b[1m3/8\x1b[0m")
    assert not differences(PLAIN, other + "shoal: 1 fit · 16 steps · 512 samples · 2 workers\n")
    assert [line.words for line in lines(PLAIN)] == [
        "Epoch #/#",
        "- accuracy: # - loss: #",
        "Time taken:",
        "Test loss: #",
    ]


@pytest.mark.parametrize(
    ("said", "instead"),
    [("0.8150", "0.8250"), ("Test loss", "Best loss"), ("Epoch 1/2", "Epoch 1/3"), ("Test loss: 0.4312\n", "")],
)
def test_other_numbers_words_and_lines_are_seen(said: str, instead: str) -> None:
    assert differences(PLAIN, PLAIN.replace(said, instead))


def test_a_trend_is_of_the_last_numbers_of_each_kind() -> None:
    assert not other_trend("loss 9.0\nloss 1.0\n", "loss 5.0\nloss 1.2\n")
    assert other_trend("loss 9.0\nloss 1.0\n", "loss 5.0\nloss 2.2\n")
    assert other_trend("loss 1.0\n", "loss nan\n")
    assert other_trend("loss 1.0\n", "nothing\n")


def test_files_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    plain, shoal = tmp_path / "plain", tmp_path / "shoal"
    for folder, value in ((plain, 1.0), (shoal, 1.0001)):
        folder.mkdir()
        np.save(folder / "epoch_1.npy", np.full(3, value))
        (folder / "log.csv").write_text(f"epoch,loss\n0,{value}\n")
    assert not other_files(plain, shoal, contents=True)
    np.save(shoal / "epoch_1.npy", np.full(3, 1.1))
    assert "epoch_1.npy" in other_files(plain, shoal, contents=True)
    assert not other_files(plain, shoal, contents=False)
    (shoal / "more.txt").touch()
    assert "more.txt" in other_files(plain, shoal, contents=False)


def ended(stdout: str, stderr: str = "", code: int = 0, updates: int | None = None) -> Ended:
    return Ended(code, stdout, stderr, 1.0, Path("/nowhere"), updates)


def judged(agrees: str, shoal: Ended, updates: int = 1, refusal: str = "") -> str:
    script = Script(Path("s.py"), ("jax",), agrees, refusal, updates)
    return judge(script, ended("loss 1.0\n", updates=16), shoal)[0]


def test_a_run_that_prints_the_same_without_dividing_anything_did_not_agree() -> None:
    """As where each worker trains the whole by itself."""
    assert judged("rounding", ended("loss 1.0\n", "shoal: 1 fit · 16 steps · 512 samples · 2 workers")) == "rounding"
    assert judged("rounding", ended("loss 1.0\n", "shoal: nothing was trained through Keras: each of")) == "alone"
    assert judged("rounding", ended("loss 1.0\n", "shoal: 1 fit · 8 steps · 256 samples · 2 workers")) == "alone"
    assert judged("rounding", ended("loss 1.0\n", "shoal: 1 fit · 8 steps · 256 samples · 2 workers"), 2) == "rounding"
    assert judged("rounding", ended("loss 1.0\n")) == "alone"
    first = "shoal: 3 fits, 1 evaluation · 1,016 steps · 5 samples · 2 workers"
    assert steps_divided(f"{first}\nshoal: 1 fit · 4 steps · 9 samples · 2 workers") == 1020


def test_a_refusal_is_one_in_the_words_that_are_documented() -> None:
    words = "outside of fit() would train each"
    refused = ended("", f"shoal: the run ended: SGD.apply() {words} …", code=1)
    assert judged("refused", refused, refusal=words) == "refused"
    assert judged("refused", ended("", "Segmentation fault", code=139), refusal=words) == "failed"
    assert judged("refused", ended("", "Segmentation fault", code=139), refusal="Segmentation fault") != "refused"
    assert judged("rounding", refused) == "failed"
    assert judged("refused", ended("loss 1.0\n"), refusal=words) == "trained"


def test_every_script_says_what_is_expected_of_it() -> None:
    scripts = all_scripts()
    assert len(scripts) >= 60
    assert len({script.name for script in scripts}) == len(scripts)


def test_a_head_that_says_nothing_useful_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text("# backends: jax\n")
    with pytest.raises(ValueError, match="agrees"):
        read(path)
    path.write_text("# backends: cupy\n# agrees: rounding\n")
    with pytest.raises(ValueError, match="cupy"):
        read(path)
