from __future__ import annotations

import pytest

from shoal.cluster.messages import End
from shoal.config import RunConfig, Servers
from shoal.errors import UsageError
from shoal.launch import logs, report


def config(folder: str = "/logs") -> RunConfig:
    return RunConfig("r1", 2, 1, "jax", "train.py", pieces=4, logs=folder)


def test_the_opening_is_one_line_with_all_that_fixes_the_run():
    assert report.opening(config()) == "shoal: run r1 · 2 workers · 4 pieces · 1 thread each · jax · logs in /logs"


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (Servers(2, 2, None), "2 servers · no bound on staleness"),
        (Servers(1, 1, 0), "1 server · synchronous"),
        (Servers(3, 2, 4), "3 servers · staleness 4"),
    ],
)
def test_the_opening_tells_how_far_workers_may_be_behind_their_servers(servers, said):
    run = RunConfig("r1", 1, 1, "jax", "train.py", pieces=1, logs="/logs", strategy="ps", servers=servers)
    expected = f"shoal: run r1 · 1 worker · {said} · 1 piece · 1 thread each · jax · logs in /logs"
    assert report.opening(run) == expected


def test_the_closing_shows_a_traceback_where_there_is_one():
    end = End(False, 1, "worker-1 raised X", ("worker-1",), "Traceback:\n  boom")
    assert report.closing(end, config()) == (
        "shoal: the run ended: worker-1 raised X.\n"
        "  worker-1's traceback:\n    Traceback:\n      boom\n  Its whole log: /logs/worker-1.log"
    )


def test_the_closing_shows_the_last_lines_where_there_is_none(tmp_path):
    (tmp_path / "worker-1.log").write_text("".join(f"line {n}\n" for n in range(100)))
    text = report.closing(End(False, 1, "worker-1 died", ("worker-1",), advice="Look."), config(str(tmp_path)))
    assert "  Look.\n  worker-1's last 20 lines:\n    line 80\n" in text
    assert "line 99" in text
    assert "line 79" not in text


def test_an_empty_log_is_said_to_be_empty(tmp_path):
    assert "worker-1 wrote nothing to its log" in report.closing(
        End(False, 1, "x", ("worker-1",)), config(str(tmp_path))
    )


def test_the_newest_logs_are_kept(tmp_path):
    for number in range(30):
        (tmp_path / f"20260101-{number:06}").mkdir()
    logs.prepare(tmp_path / "20270101-000000", prune=True)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == logs.KEPT_RUNS
    assert kept[-1] == "20270101-000000"
    assert kept[0] == "20260101-000011"


def test_a_folder_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"can't write logs to .*--logs"):
        logs.prepare(tmp_path / "file" / "logs", prune=False)


def test_a_follower_gives_whole_lines_with_names(tmp_path):
    path = tmp_path / "worker-1.log"
    path.touch()
    follower = logs.Follower({"worker-1": path})
    with path.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert follower.new_lines() == ["[worker-1] one"]
        log.write(b"o\nthree")
        assert follower.new_lines() == ["[worker-1] two"]
        assert follower.new_lines(final=True) == ["[worker-1] three"]
    follower.close()


def test_the_tail_of_a_long_log_is_read_from_its_end(tmp_path):
    path = tmp_path / "long.log"
    path.write_bytes(b"x" * 200_000 + b"\nlast\n")
    assert logs.tail(path, 1) == ["last"]
    assert logs.tail(tmp_path / "none.log", 5) == []
