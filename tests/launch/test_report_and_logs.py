from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.messages import End, WorkDone
from shoal.config import RunConfig, Servers
from shoal.errors import UsageError
from shoal.launch import logs, report
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares


def config(folder: str = "/logs") -> RunConfig:
    return RunConfig("r1", 2, 1, "jax", "train.py", pieces=4, logs=folder)


def test_the_opening_is_one_line_with_all_that_fixes_the_run():
    assert report.opening(config()) == "shoal: run r1 · 2 workers · 4 pieces · 1 thread each · jax · logs in /logs"
    assert "2 workers · 4 replicas · 1 thread each" in report.opening(
        msgspec.structs.replace(config(), strategy="local")
    )


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


def finished(work: WorkDone, finishers: int = 2, losses: int = 0) -> End:
    return End(True, 0, "every worker finished its script", work=work, finishers=finishers, losses=losses)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            finished(WorkDone({"fit": 2, "evaluate": 1}, 1200, 76800)),
            "shoal: 2 fits, 1 evaluation · 1,200 steps · 76,800 samples · 2 workers",
        ),
        (
            finished(WorkDone({"fit": 1, "predict": 3}, 1, 1), losses=1),
            "shoal: 1 fit, 3 predictions · 1 step · 1 sample · 2 workers, 1 loss survived",
        ),
        (
            finished(WorkDone({"fit": 1}, 20, 640), finishers=1, losses=4),
            "shoal: 1 fit · 20 steps · 640 samples · 2 workers at the start, 1 at the end, 4 losses survived",
        ),
        (finished(WorkDone({"predict": 1})), "shoal: 1 prediction · nothing was trained · 2 workers"),
        (
            finished(WorkDone({"loop": 2, "train_on_batch": 10}, 30, 960)),
            "shoal: 2 loops, 10 train_on_batch calls · 30 steps · 960 samples · 2 workers",
        ),
    ],
)
def test_the_summary_says_what_was_distributed(end, said):
    assert report.summary(end, config()) == said


def test_the_summary_of_a_run_that_went_on_from_a_checkpoint_says_from_where():
    resumed = RunConfig("r1", 2, 1, "jax", "train.py", logs="/logs", resume="/saved/step-000000400")
    assert "· 1,200 steps, from step 400 on · 76,800 samples ·" in report.summary(
        finished(WorkDone({"fit": 1}, 1200, 76800)), resumed
    )


def test_under_the_summary_is_where_the_time_went_what_was_saved_and_what_was_sent():
    spent = TimeShares({TimeUse.COMPUTING: 6.0, TimeUse.WAITING: 2.0, TimeUse.OTHER: 90.0})
    counted = WorkerFigures(checkpoints=3, saved=1500, shared=2_400_000_000, sent=640)
    said = report.summary(finished(WorkDone({"fit": 1}, 20, 640, spent, counted)), config())
    assert said.splitlines() == [
        "shoal: 1 fit · 20 steps · 640 samples · 2 workers",
        "shoal:   time         75 % computing · 25 % waiting",
        "shoal:   checkpoints  3, the last of step 1,500",
        "shoal:   exchanged    2.4 GB through shared memory · 640 bytes over sockets",
    ]


def test_workers_that_came_late_do_not_know_of_all_checkpoints():
    work = WorkDone({"fit": 1}, 20, 640, counted=WorkerFigures(checkpoints=2, saved=15))
    end = msgspec.structs.replace(finished(work), losses=1)
    assert "shoal:   checkpoints  at least 2, the last of step 15" in report.summary(end, config()).splitlines()


def test_a_script_that_never_trained_is_told_so_and_what_to_do():
    said = report.summary(finished(WorkDone()), config())
    assert said.startswith(
        "shoal: nothing was trained through Keras: each of the 2 workers ran the whole script by itself"
    )
    assert "share the work of fit, train_on_batch, evaluate and predict, and of loops over shoal.batches" in said
    assert "run it with `python`" in said


def test_plain_keras_on_one_worker_ends_without_a_word():
    plain = RunConfig("r1", 1, 1, "jax", "train.py", logs="/logs")
    assert report.summary(finished(WorkDone(), finishers=1), plain) == ""


def test_the_closing_shows_a_traceback_where_there_is_one():
    end = End(False, 1, "worker-1 raised X", ("worker-1",), "Traceback:\n  boom")
    assert report.closing(end, config()) == (
        "shoal: the run ended: worker-1 raised X.\n"
        "  worker-1's last words:\n    Traceback:\n      boom\n  Its whole log: /logs/worker-1.log"
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
    follower = logs.Follower()
    follower.follow("worker-1", path)
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


def test_a_log_that_can_not_be_written_costs_its_lines_and_not_the_run(tmp_path):
    said: list[str] = []
    (tmp_path / "file").touch()
    with logs.Logs(tmp_path / "file" / "logs", said.append).open("worker-3") as log:
        log.write(b"lost")
    (text,) = said
    assert text.startswith("worker-3 has no log: can't write ")
    assert "Not a directory" in text
