"""What is shown of stacks."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import shoal
from shoal.cluster.stack_text import shortened

SHOAL = Path(shoal.__file__).parent
STDLIB = sysconfig.get_path("stdlib")


def call(path: object, name: str) -> str:
    return f'  File "{path}", line 7 in {name}'


HEAD, OTHER = "Current thread 0x2 (most recent call first):", "Thread 0x1 (most recent call first):"


def test_the_thread_that_was_asked_comes_first_and_shoals_calls_are_counted() -> None:
    lines = [
        OTHER,
        call("/x/data.py", "next_batch"),
        "",
        HEAD,
        call(f"{STDLIB}/threading.py", "wait"),
        *[call(SHOAL / "training/fit_loop.py", "run")] * 5,
        call("/x/train.py", "<module>"),
        call("<frozen runpy>", "_run_code"),
        call(SHOAL / "launch/worker.py", "main"),
    ]
    assert shortened(lines) == [
        f"    {line}"
        for line in (
            HEAD,
            call(f"{STDLIB}/threading.py", "wait"),
            call(SHOAL / "training/fit_loop.py", "run"),
            "  … 4 calls within Shoal",
            call("/x/train.py", "<module>"),
            OTHER,
            call("/x/data.py", "next_batch"),
        )
    ]


def test_threads_of_libraries_are_left_out() -> None:
    idle = [OTHER, call(f"{STDLIB}/threading.py", "wait"), call("/v/lib/site-packages/pool/pool.py", "_worker")]
    assert shortened([*idle, HEAD, call("/x/train.py", "loop")]) == [
        f"    {HEAD}",
        f"    {call('/x/train.py', 'loop')}",
    ]


def test_a_long_stack_is_shortened_from_its_end() -> None:
    short = shortened([HEAD, *[call("/x/train.py", str(number)) for number in range(60)]])
    assert len(short) == 41
    assert short[-1] == "    … and 21 lines more"


def test_nothing_is_shown_of_nothing() -> None:
    assert shortened([]) == ["    "]
