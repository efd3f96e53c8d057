"""The launcher starts servers beside the workers, and others in the place of those that die.

The coordinator and the members are stand-ins: the coordinator plays the test's scene, members do as they are told.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from shoal.cluster.messages import End
from shoal.config import RunConfig, Servers
from shoal.launch import local
from shoal.launch.plan import LaunchPlan, ProcessPlan
from shoal.launch.processes import Process
from shoal.launch.supervision import local_coordination, local_launcher

# `heard` has the messages of the launcher so far; `until` waits for one; `tell` lets a member exit with a code.
_COORDINATOR = """
import sys
from pathlib import Path
from shoal.cluster.launcher_pipe import Dying, LauncherPipe, MemberTold, Reaped, Spawned, Wanted
from shoal.cluster.messages import End

folder = Path(sys.argv[1])
launcher_pipe = LauncherPipe(0, 1)
heard = []
def until(wanted):
    while not any(wanted(message) for message in heard): heard.extend(launcher_pipe.receive())
def spawned(id):
    until(lambda message: isinstance(message, Spawned) and message.member == id)
def tell(id, code):
    (folder / f".{id}").write_text(str(code))
    (folder / f".{id}").rename(folder / f"{id}.code")
"""

# The end: everyone leaves well, and the launcher lets go.
_END = """
launcher_pipe.send(End(True, 0, "done"))
for id in {message.member for message in heard if isinstance(message, Spawned)}: tell(id, 0)
try:
    while True: heard.extend(launcher_pipe.receive())
except EOFError:
    (folder.parent / "heard").write_text("\\n".join(map(str, heard)))
"""

_MEMBER = """
import sys, time
from pathlib import Path

folder, id = Path(sys.argv[1]), sys.argv[2]
print(id, "is here")
(folder.parent / f"{id}.words").write_text(" ".join(sys.argv[3:]))
deadline = time.monotonic() + 20
while not (folder / f"{id}.code").exists() and time.monotonic() < deadline: time.sleep(0.005)
sys.exit(int((folder / f"{id}.code").read_text()))
"""

Play = Callable[..., End]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """A run of stand-ins to its end. `scene` is what the coordinator does."""
    (tmp_path / "stand_in_member.py").write_text(_MEMBER)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    folder = tmp_path / "run"
    folder.mkdir()

    def stand_in(module: str, *arguments: object, **options: object) -> Process:
        role = "coordinator" if module.endswith("coordinator") else "member"
        return Process(f"stand_in_{role}", *arguments, **options)  # type: ignore[arg-type]

    for module in (local_coordination, local_launcher):
        monkeypatch.setattr(module, "Process", stand_in)

    def play(scene: str, workers: int = 1, servers: int = 2, max_restarts: int = 3, end: str = _END) -> End:
        (tmp_path / "stand_in_coordinator.py").write_text(_COORDINATOR + dedent(scene) + end)
        config = RunConfig("r1", workers, 1, "jax", "train.py", least=1, servers=Servers(servers, 1, None))
        plan = LaunchPlan(
            config,
            tuple(ProcessPlan(f"worker-{number}", (), environment) for number in range(workers)),
            tuple(ProcessPlan(f"server-{number}", (), environment) for number in range(servers)),
            max_restarts,
        )
        return local.supervise(plan, folder, tmp_path, {**environment, "PATH": "/bin"})

    return play


def words_of(folder: Path, id: str) -> list[str]:
    return (folder / f"{id}.words").read_text().split()


def started(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.words"))


def test_servers_are_started_with_logs_of_their_own_and_without_the_terminal(play: Play, tmp_path: Path) -> None:
    assert play("for id in ('worker-0', 'worker-1', 'server-0', 'server-1'): spawned(id)", workers=2).ok
    assert started(tmp_path) == ["server-0", "server-1", "worker-0", "worker-1"]
    for id in ("server-0", "server-1"):
        cores, death_pipe = words_of(tmp_path, id)
        assert (cores, death_pipe.isdecimal()) == ("-", True)
        assert (tmp_path / f"{id}.log").read_text() == f"{id} is here\n"
    assert len(words_of(tmp_path, "worker-1")) == 3, "a worker may become the chief"


def test_a_server_that_dies_is_replaced_by_one_with_a_new_id(play: Play, tmp_path: Path) -> None:
    end = play(
        "spawned('server-0'); tell('server-0', 9); spawned('server-2'); tell('server-2', 9); spawned('server-3')"
    )
    assert end.ok, "the workers have finished"
    assert started(tmp_path) == ["server-0", "server-1", "server-2", "server-3", "worker-0"]
    heard = (tmp_path / "heard").read_text()
    for event in ("Dying(member='server-0')", "Reaped(member='server-0', code=9)", "Reaped(member='worker-0', code=0)"):
        assert event in heard


def test_workers_and_servers_are_counted_separately(play: Play, tmp_path: Path) -> None:
    scene = """
    spawned('server-0'); tell('server-0', 9); spawned('server-2')
    tell('worker-0', 9); spawned('worker-2')
    launcher_pipe.send(Wanted(2)); spawned('worker-4')
    """
    assert play(scene, workers=2).ok
    workers = [f"worker-{number}" for number in range(5)]
    assert started(tmp_path) == ["server-0", "server-1", "server-2", *workers]


def test_a_server_is_not_replaced_when_its_restarts_are_used_up(
    play: Play, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scene = """
    spawned('server-0'); tell('server-0', 9); spawned('server-2'); tell('server-2', 9)
    until(lambda message: message == Reaped('server-2', 9))
    """
    assert play(scene, max_restarts=1).ok
    assert started(tmp_path) == ["server-0", "server-1", "server-2", "worker-0"]
    assert "server-0 was replaced 1 times within an hour" in capfd.readouterr().err


@pytest.mark.parametrize(("member", "ok"), [("server-1", True), ("worker-0", False)])
def test_only_workers_can_spoil_a_good_end_with_their_last_code(play: Play, member: str, ok: bool) -> None:
    late = _END.replace("tell(id, 0)", f"tell(id, 5 if id == {member!r} else 0)")
    assert play("spawned('worker-0'); spawned('server-1')", end=late).ok is ok
