"""The chief acts on files, the others follow: in one process, with real files."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

from shoal.files.files import Operation

from .scene import Scene, Worker


def real(scene: Scene, name: str) -> str:
    return (scene.data / name).read_text()


def test_a_folder_is_made_once_and_nobody_finds_it_there(scene: Scene, chief: Worker, other: Worker) -> None:
    other.meanwhile = [lambda: chief.mkdir("out")]
    other.mkdir("out")
    assert not other.meanwhile
    assert list(scene.data.iterdir()) == [scene.data / "out"]


def test_an_error_of_the_chief_is_everybodys(scene: Scene, chief: Worker, other: Worker) -> None:
    (scene.data / "out").mkdir()
    for act in (lambda worker: worker.mkdir("out"), lambda worker: worker.remove("nothing")):
        with pytest.raises(OSError) as chiefs:
            act(chief)
        with pytest.raises(OSError) as others:
            act(other)
        assert (type(chiefs.value), chiefs.value.errno) == (type(others.value), others.value.errno)


def test_what_others_write_only_they_see(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.write("result", "chief's")
    other.write("result", "mine")
    assert other.read("result") == "mine"
    assert chief.read("result") == real(scene, "result") == "chief's"


def test_a_file_that_is_written_again_and_again_is_read_as_it_was_written(chief: Worker, other: Worker) -> None:
    for worker in (chief, other):  # the chief is far ahead
        for n in range(3):
            worker.write("tmp", str(n))
            assert worker.read("tmp") == str(n)
        worker.remove("tmp")
        assert not worker.exists("tmp")


def test_a_worker_goes_on_when_the_chief_has_closed_the_file(scene: Scene, chief: Worker, other: Worker) -> None:
    """Libraries that do not ask here may read it next."""
    file = chief.open("result", "w")
    file.write("whole")
    other.meanwhile = [lambda: None, file.close]
    other.write("result", "whole")
    assert not other.meanwhile
    assert real(scene, "result") == "whole"


def test_lines_that_are_added_are_added_once(scene: Scene, chief: Worker, other: Worker) -> None:
    for n in range(2):
        for worker in (chief, other):
            worker.write("log", f"{n}\n", "a")
    other.meanwhile = [chief.call]
    assert real(scene, "log") == other.read("log") == "0\n1\n"


def test_a_file_that_the_chief_may_be_writing_is_read_when_it_has_come_to_its_fit(chief: Worker, other: Worker) -> None:
    file = chief.open("cache", "w")
    file.write("half")
    file.flush()
    rest = [lambda: file.write(" and half"), file.close, lambda: chief.write("cache", ", more", "a"), chief.call]
    other.meanwhile = rest
    assert other.read("cache") == "half and half, more"


def test_an_archive_that_is_being_unpacked_is_looked_into_when_it_is_unpacked(chief: Worker, other: Worker) -> None:
    chief.mkdir("data")
    assert other.exists("data")
    other.meanwhile = [lambda: chief.write("data/late.csv", "1"), chief.call]
    assert other.read("data/late.csv") == "1"
    assert other.names("data") == ["late.csv"]


def test_what_was_there_before_is_read_at_once(scene: Scene, chief: Worker, other: Worker) -> None:
    (scene.data / "old").write_text("old")
    other.now += 100  # it meets the others later than that
    other.files.meet(True)
    other.files.meet(False)
    assert other.read("old") == "old"
    assert not other.exists("nothing")
    assert other.names() == ["old"]


def test_what_the_chief_fetched_is_not_fetched_twice(scene: Scene, chief: Worker, other: Worker) -> None:
    other.meanwhile = [lambda: chief.make("data.zip", "fetched")]
    other.make("data.zip", "fetched again")
    assert other.read("data.zip") == "fetched"


def test_what_the_chief_has_removed_is_read_by_those_who_have_not_come_so_far(chief: Worker, other: Worker) -> None:
    chief.make("data.zip", "fetched")
    chief.remove("data.zip")
    other.make("data.zip", "fetched again")
    assert other.exists("data.zip")
    assert other.read("data.zip") == "fetched"
    other.remove("data.zip")
    assert not other.exists("data.zip")


def test_what_the_chief_has_renamed_is_read_under_its_old_name(chief: Worker, other: Worker) -> None:
    chief.make("old", "same")
    chief.rename("old", "new")
    other.make("old", "same")
    assert other.read("old") == "same"
    other.rename("old", "new")
    assert not other.exists("old")


def test_a_folder_that_the_chief_has_removed_is_empty_for_those_who_have_not_come_so_far(
    scene: Scene, chief: Worker, other: Worker
) -> None:
    chief.mkdir("tmp")
    chief.mkdir("tmp/deep")
    chief.rmtree("tmp")
    assert other.names("tmp/deep") == []


def test_what_the_chief_no_longer_holds_is_fetched_again_for_oneself(
    scene: Scene, chief: Worker, other: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.files.held._MOST", 0)
    chief.make("data.zip", "fetched")
    chief.remove("data.zip")
    other.make("data.zip", "fetched again")
    assert other.read("data.zip") == "fetched again"
    assert not (scene.data / "data.zip").exists()


def test_within_a_fit_nobody_waits_and_each_sees_its_own(scene: Scene, chief: Worker, other: Worker) -> None:
    for worker in (chief, other):
        worker.call()
    other.mkdir("pictures")
    other.write("pictures/1.png", "mine")
    assert other.names("pictures") == ["1.png"]
    chief.mkdir("pictures")
    chief.write("pictures/0.png", "chief's")
    assert other.names("pictures") == ["0.png", "1.png"]
    assert other.read("pictures/0.png") == "chief's"
    assert [path.name for path in (scene.data / "pictures").iterdir()] == ["0.png"]


def test_a_draft_that_is_renamed_is_the_file(scene: Scene, chief: Worker, other: Worker) -> None:
    for worker in (chief, other):
        worker.write("draft", worker.id)
        worker.rename("draft", "final")
        assert worker.read("final") == worker.id
        assert not worker.exists("draft")
    other.meanwhile = [chief.call]
    assert other.names() == ["final"]


def test_after_the_next_fit_the_chiefs_file_is_seen_again(scene: Scene, chief: Worker, other: Worker) -> None:
    for worker in (chief, other):
        worker.write("result", worker.id)
        worker.write(f"only-{worker.id}", "")
    other.now += 100
    for worker in (chief, other):
        worker.call()
        worker.goes_on()
    assert other.read("result") == "worker-0"
    assert other.exists("only-worker-1")
    assert [path.name for path in other.private.rglob("*") if path.is_file()] == ["only-worker-1"]


def test_a_file_that_the_chief_has_announced_is_read_at_once(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.write("model.keras", "chief's")
    other.files.settle(str(scene.data / "model.keras"))
    assert other.read("model.keras") == "chief's"


def test_a_folder_with_the_time_in_its_name_is_the_chiefs(scene: Scene, chief: Worker, other: Worker) -> None:
    times = {chief: "run-1204", other: "run-1205"}
    for worker, name in times.items():
        worker.mkdir(name)
        worker.mkdir(f"{name}/deep")
        worker.write(f"{name}/deep/settings", worker.id)
        assert worker.read(f"{name}/deep/settings") == worker.id
    chief.write("run-1204/model", "chief's")
    path = str(scene.data / "run-1205" / "model")
    assert other.files.as_the_chief_says(path) == str(scene.data / "run-1204" / "model")
    other.files.settle(path)
    assert other.read("run-1205/model") == "chief's"
    other.becomes_chief()
    other.write("run-1205/more", "mine")
    assert other.read("run-1205/more") == real(scene, "run-1204/more") == "mine"
    assert [path.name for path in scene.data.iterdir()] == ["run-1204"]


def test_who_comes_late_finds_what_was_fetched(scene: Scene, chief: Worker) -> None:
    (scene.data / "old").write_text("old")
    chief.make("data.zip", "fetched")
    for _ in range(3):
        chief.call()
        chief.goes_on()
    late = scene.worker(2)
    late.make("data.zip", "fetched again")
    assert late.read("data.zip") == "fetched"


def test_who_comes_late_finds_the_folder_with_the_time_in_its_name(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.mkdir("run-1204")
    other.mkdir("run-1205")
    for _ in range(3):
        for worker in (chief, other):
            worker.call()
            worker.goes_on()
            worker.write("scratch", "")
    late = scene.worker(2)
    late.mkdir("run-1207")
    for name in ("run-1205", "run-1207"):  # a callback may bring another worker's
        assert late.files.where(scene.data / name)[1] == str(scene.data / "run-1204")
    other.becomes_chief()
    later = scene.worker(3)
    later.mkdir("run-1208")
    assert later.files.where(scene.data / "run-1208")[1] == str(scene.data / "run-1204")


def test_who_asks_for_its_rank_handles_its_files_itself(scene: Scene, chief: Worker, other: Worker) -> None:
    other.rank_was_asked = True
    other.write("result-1", "mine")
    other.mkdir("own")
    assert real(scene, "result-1") == "mine"
    assert (scene.data / "own").is_dir()


def test_a_chief_on_another_host_is_not_followed(scene: Scene, other: Worker) -> None:
    scene.chief = "elsewhere"
    other.write("result", "mine")
    assert real(scene, "result") == "mine"


def test_a_chief_whose_journal_is_gone_is_not_waited_for(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.write("result", "chief's")
    shutil.rmtree(scene.run / "files")
    other.write("result", "mine")
    chief.call()
    chief.goes_on()
    chief.write("result", "chief's, again")
    assert real(scene, "result") == "chief's, again"
    assert other.read("result") == "mine"


def test_a_wait_says_for_whom_and_for_what(
    scene: Scene, chief: Worker, other: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.files.files._LONG", -1.0)
    other.meanwhile = [lambda: chief.mkdir("out")]
    other.mkdir("out")
    assert other.said == [f"waiting for worker-0 at {scene.data / 'out'}", ""]


def test_unusual_calls_go_to_python(scene: Scene, chief: Worker, other: Worker) -> None:
    path = scene.data / "unusual"
    other._opening.open(os.fsencode(path), "w").close()
    folder = os.open(scene.data, os.O_RDONLY)
    try:
        other._changing.rename("unusual", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
        other._changing.mkdir("made", dir_fd=folder)
        other._opening.open("opened", "w", -1, None, None, None, True, lambda name, flags: os.open(path, flags)).close()
        assert other._looking.stat(folder).st_ino == scene.data.stat().st_ino
    finally:
        os.close(folder)
    assert sorted(found.name for found in scene.data.iterdir()) == ["made", "renamed", "unusual"]


# The chief dies -----------------------------------------------------------------------------------------


def test_the_next_chief_does_what_the_last_one_did_not_come_to(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.mkdir("out")
    other.mkdir("out")
    other.meanwhile = [other.becomes_chief]
    other.write("out/result", "mine")
    assert real(scene, "out/result") == "mine"


def test_the_next_chief_does_not_repeat_what_the_last_one_did(scene: Scene, chief: Worker, other: Worker) -> None:
    chief.mkdir("out")
    chief.write("log", "line\n", "a")
    chief.make("data.zip", "fetched")
    other.mkdir("out")
    other.becomes_chief()
    other.write("log", "line\n", "a")
    other.make("data.zip", "fetched again")
    assert real(scene, "log") == "line\n"
    assert real(scene, "data.zip") == "fetched"


def test_a_folder_that_the_last_chief_could_not_tell_of_is_no_error(scene: Scene, chief: Worker, other: Worker) -> None:
    other.meanwhile = [lambda: (scene.data / "out").mkdir(), other.becomes_chief]
    other.mkdir("out")


@pytest.mark.parametrize("waits", [False, True])
def test_what_the_last_chief_had_done_is_not_done_again_by_one_who_hears_in_the_same_operation_that_it_is_the_next(
    scene: Scene, chief: Worker, other: Worker, waits: bool
) -> None:
    def chiefs_last_deeds() -> None:
        chief.rmtree("out")
        chief.mkdir("out")
        chief.write("out/a", "1")
        scene.chief = other.id  # which the view says before anybody has told the worker

    (scene.data / "out").mkdir()
    if waits:
        other.meanwhile = [chiefs_last_deeds]
    else:
        chiefs_last_deeds()
    other.rmtree("out")
    with contextlib.suppress(FileExistsError):
        other.mkdir("out")
    assert other.read("out/a") == "1"


def test_a_file_that_the_last_chief_left_half_written_becomes_whole(scene: Scene, chief: Worker, other: Worker) -> None:
    file = chief.open("result", "w")
    file.write("ha")
    file.flush()
    other.meanwhile = [other.becomes_chief]  # it has written all, and waits for the chief to close its file
    other.write("result", "half and half")
    assert real(scene, "result") == "half and half"
    file.close()


def test_a_file_that_the_last_chief_left_half_written_is_not_there_for_who_has_not_come_to_it(
    scene: Scene, chief: Worker, other: Worker
) -> None:
    (scene.data / "old").write_text("old")
    chief.write("first", "")
    other.write("first", "")
    file = chief.open("cache", "w")
    overwritten = chief.open("old", "w")
    chief.write("whole", "whole", "a")
    chief.files._note(Operation("begun:fetch", str(scene.data / "data.zip")), 0, is_new=True)
    (scene.data / "data.zip").write_text("ha")
    other.becomes_chief()
    other.write("second", "")
    assert other.exists("first")
    assert other.exists("old")
    assert other.exists("whole")
    assert not other.exists("cache")
    assert not other.exists("data.zip")
    file.close()
    overwritten.close()


def test_a_file_that_is_open_goes_on_for_real(scene: Scene, chief: Worker, other: Worker) -> None:
    chiefs, others = chief.open("log.csv", "w"), other.open("log.csv", "w")
    for file in (chiefs, others):
        file.write("epoch 1\n")
    others.flush()
    other.becomes_chief()
    other.files.meet(True)
    others.write("epoch 2\n")
    others.close()
    assert real(scene, "log.csv") == "epoch 1\nepoch 2\n"
    chiefs.close()


def test_a_picture_that_the_last_chief_did_not_come_to_is_there(scene: Scene, chief: Worker, other: Worker) -> None:
    for worker in (chief, other):
        worker.call()
    other.mkdir("pictures")
    other.write("pictures/1.png", "mine")
    other.becomes_chief()
    other.files.meet(True)
    assert real(scene, "pictures/1.png") == "mine"
    other.write("pictures/2.png", "mine")
    assert real(scene, "pictures/2.png") == "mine"
    assert not other.private.exists()
