"""`shoal plan`: runs a script in one process until it would train, and measures there. Nothing is trained.

    python -m shoal.launch.planner CONFIG FACTS CORE,CORE…|-

The process is a worker's in everything that its speed depends on: environment, threads, cores. It has no coordinator,
and it ends when it has measured, at once: nothing of the script comes after that, not even its `finally`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from shoal.config import RunConfig
from shoal.errors import RunFailed, UsageError
from shoal.launch.cores import settle_on
from shoal.launch.devices.reading import read_inventory
from shoal.launch.plan import LaunchPlan, make_plan
from shoal.launch.request import LaunchRequest
from shoal.strategies.mesh.shape import Mesh

if TYPE_CHECKING:
    from shoal.planning.facts import PlanFacts

_LAST_LINES = 20


def measured(
    request: LaunchRequest, environ: Mapping[str, str], cores: tuple[int, ...], speeds: tuple[float, ...] = ()
) -> tuple[PlanFacts, LaunchPlan]:
    """What a script's first fit was measured to take, on a worker of the run that was asked for; where it has several
    devices, with each mesh of them. `speeds`: of the workers, for which stages are cut, too.

    UsageError if that can't be started, or never trains; RunFailed if the script raises before it does.
    """
    request = replace(request, strategy="auto")
    plan = make_plan(request, environ, cores, inventory=read_inventory(environ))
    plan = replace(plan, config=msgspec.structs.replace(plan.config, speeds=speeds))
    facts = _facts_of(plan, request.script)
    if plan.config.mesh is None:
        return facts, plan
    from shoal.planning.facts import with_meshes

    found, left_out = {plan.config.mesh: facts}, {}
    for mesh in other_meshes(Mesh.parse(plan.config.mesh).size):
        config = msgspec.structs.replace(plan.config, mesh=mesh)
        try:
            found[mesh] = _facts_of(replace(plan, config=config), request.script)
        except RunFailed as failed:
            left_out[f"mesh {mesh}"] = str(failed).splitlines()[-1].strip()
    return with_meshes(facts, found, left_out), plan


def _facts_of(plan: LaunchPlan, script: str) -> PlanFacts:
    """What one process finds."""
    with tempfile.TemporaryDirectory(prefix="shoal-plan-") as folder:
        config, facts, output = (Path(folder, name) for name in ("config", "facts", "output"))
        config.write_bytes(plan.config.encoded())
        worker = plan.workers[0]
        command = [sys.executable, "-m", "shoal.launch.planner", str(config), str(facts)]
        with output.open("wb") as out:
            code = subprocess.call(
                [*command, ",".join(map(str, worker.cores)) or "-"],
                env=dict(worker.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        if not facts.exists():
            raise _no_facts(script, code, output.read_text(errors="replace"))
        from shoal.planning.facts import PlanFacts  # brings numpy, which nobody needs before

        return msgspec.json.decode(facts.read_bytes(), type=PlanFacts)


def other_meshes(devices: int) -> list[str]:
    """Besides rows that are divided among all devices: weights too, or features, or both."""
    ways = [model for model in range(2, devices + 1) if devices % model == 0]
    meshes = [Mesh(devices, fsdp=True), *(Mesh(devices // model, model) for model in ways)]
    return [str(mesh) for mesh in meshes]


def _no_facts(script: str, code: int, output: str) -> Exception:
    last = "\n".join(f"  {line}" for line in output.splitlines()[-_LAST_LINES:])
    if code == 0:
        said = f" It said:\n{last}" if last else ""
        return UsageError(
            f"{script} came to its end without calling `model.fit`, and a plan is made of what fit is called with. "
            f"Plan a script that trains with fit, with the arguments that make it train.{said}"
        )
    return RunFailed(f"{script} failed before it could be measured:\n{last}", code if code > 0 else 1)


def main(words: list[str]) -> NoReturn:
    config = msgspec.json.decode(Path(words[0]).read_bytes(), type=RunConfig)
    if config.backend != "jax":  # whose compiler uses more cores than one
        settle_on([int(core) for core in words[2].split(",") if core != "-"])
    from shoal.launch.worker import execute
    from shoal.session import Session
    from shoal.session.this_process import enter

    def hand_over(facts: bytes) -> None:
        whole = Path(f"{words[1]}.part")
        whole.write_bytes(facts)
        whole.replace(words[1])
        sys.stdout.flush()
        os._exit(0)  # the script's own end, with whatever it would write there, is not wanted

    enter(Session(config=config, planner=hand_over))
    execute(config)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
