"""Which task this is, of the environments that launchers are known to set. Pure."""

from __future__ import annotations

import json

import pytest

from shoal.errors import UsageError
from shoal.launch.task_place import TaskPlace, find_place, same_host

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "gpu-1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job7",
}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[3-4]",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
CLUSTER = {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]}
TENSORFLOW = {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})}
POOLS = {"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, "task": {"type": "workerpool1", "index": 0}}
JAX = {"JAX_COORDINATOR_ADDRESS": "[2001:db8::1]:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
PET = {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "29400"}

POD = {"JOB_COMPLETION_INDEX": "2", "SHOAL_TASKS": "4", "SHOAL_FIRST": "shoal-worker-0-0.shoal"}


@pytest.mark.parametrize(
    ("environ", "rank", "size", "first", "port", "local"),
    [
        (TORCHRUN, 5, 8, "gpu-1", 29501, (1, 4)),
        (SRUN, 5, 6, "gpu3", 0, (1, 2)),
        (MPIRUN, 1, 2, "", 0, (1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, 0, 3, "", 0, (0, 1)),
        (TENSORFLOW, 2, 3, "a", 2222, (0, 1)),
        ({"CLUSTER_SPEC": json.dumps(POOLS)}, 1, 2, "a", 2222, (0, 1)),
        (JAX, 3, 4, "2001:db8::1", 1234, (0, 1)),
        (PET, 1, 2, "job-0", 29400, (0, 1)),
        (POD, 2, 4, "shoal-worker-0-0.shoal", 0, (0, 1)),
        (POD | {"SHOAL_FIRST": "shoal-worker-0-0.shoal:7777"}, 2, 4, "shoal-worker-0-0.shoal", 7777, (0, 1)),
        (PET | {"JOB_COMPLETION_INDEX": "1"}, 1, 2, "job-0", 29400, (0, 1)),
    ],
)
def test_each_launcher_tells_a_place(
    environ: dict[str, str], rank: int, size: int, first: str, port: int, local: tuple[int, int]
) -> None:
    place = find_place(environ)
    assert (place.rank, place.size, place.first, place.port) == (rank, size, first, port)
    assert (place.local_rank, place.local_size) == local


def test_two_sources_that_agree_are_one_and_one_may_know_more() -> None:
    both = {**MPIRUN, "JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    assert find_place(both).first == "a"


def test_two_sources_that_disagree_are_an_error_and_one_can_be_chosen() -> None:
    with pytest.raises(
        UsageError, match=r"task 5 of 8 by RANK.*task 5 of 6 by SLURM_PROCID.*--by torchrun or --by slurm"
    ):
        find_place({**TORCHRUN, **SRUN})
    assert find_place({**TORCHRUN, **SRUN}, by="slurm").size == 6


def test_two_sources_with_different_first_hosts_are_an_error_and_two_names_of_one_host_are_not() -> None:
    both = {**TORCHRUN, **SRUN, "RANK": "5", "WORLD_SIZE": "6"}
    with pytest.raises(UsageError, match=r"on gpu-1 by RANK.*on gpu3 by SLURM_PROCID.*--by torchrun or --by slurm"):
        find_place(both, is_same=lambda one, other: False)
    assert find_place(both, is_same=lambda one, other: True).first == "gpu-1"


def test_names_and_addresses_of_this_host_are_one() -> None:
    assert same_host("GPU-1", "gpu-1")
    assert same_host("localhost", "127.0.0.1")
    assert not same_host("192.0.2.1", "192.0.2.2")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "nothing in the environment tells"),
        ({**TORCHRUN, "RANK": "8"}, "task 8 of 8 can't be"),
        ({**TORCHRUN, "RANK": "one"}, "the variables of torchrun are not understood"),
        ({"TF_CONFIG": "{"}, "the variables of tensorflow are not understood"),
        (
            {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}})},
            "ps 0, which trains nothing",
        ),
    ],
)
def test_what_tells_no_place_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_place(environ)


def test_tasks_of_one_job_choose_the_same_port_and_those_of_another_mostly_do_not() -> None:
    ports = [TaskPlace(rank, 2, "x", job="17.0").chosen_port for rank in (0, 1)]
    assert ports[0] == ports[1] != TaskPlace(0, 2, "x", job="18.0").chosen_port
