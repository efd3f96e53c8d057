"""Who gets which devices: recorded inventories in, environments out."""

from __future__ import annotations

import pytest

from shoal.config import Devices
from shoal.errors import UsageError
from shoal.launch.devices.assignment import (
    assign,
    assign_like,
    environment_of,
    environment_without,
    told,
    with_virtual,
    workers_for,
)
from shoal.launch.devices.inventory import DeviceKind, Inventory, from_nvidia, from_rocm, from_tpu
from shoal.launch.devices.reading import for_backend, read_inventory

# As the tools print them.
EIGHT = "\n".join(
    f"GPU {i}: NVIDIA A100-SXM4-40GB (UUID: GPU-0000000{i}-aaaa-bbbb-cccc-00000000000{i})" for i in range(8)
)
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6e6ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
"""
ROCM = """{"card0": {"Card Series": "AMD Instinct MI250X", "Card Model": "0x740c", "Card SKU": "D65209"},
"card1": {"Card Series": "AMD Instinct MI250X", "Card Model": "0x740c", "Card SKU": "D65209"},
"system": {"Driver version": "6.2.4"}}"""
MEMBERS = ["worker-0", "worker-1"]
TPU = {"TPU_ACCELERATOR_TYPE": "v4-8"}


def _environments(inventory, workers, asked=None, virtual=None, backend="jax", environ=None):
    given = assign(inventory, workers, asked, virtual, backend)
    return [environment_of(given, number, inventory, environ or {}) for number in range(workers)]


def test_four_workers_on_a_host_with_eight_gpus_have_two_each():
    inventory = from_nvidia(EIGHT, {})
    assert str(inventory) == "8 NVIDIA A100-SXM4-40GB"
    visible = [one["CUDA_VISIBLE_DEVICES"] for one in _environments(inventory, 4)]
    assert visible == ["0,1", "2,3", "4,5", "6,7"]
    # Numbers mean what nvidia-smi means by them.
    assert all(one["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for one in _environments(inventory, 4))


def test_what_the_user_has_made_visible_is_all_there_is_to_give():
    inventory = from_nvidia(EIGHT, {"CUDA_VISIBLE_DEVICES": "6, 3,GPU-00000001-aaaa-bbbb-cccc-000000000001,2"})
    assert inventory.ids == ("6", "3", "GPU-00000001-aaaa-bbbb-cccc-000000000001", "2")
    assert str(inventory) == "4 NVIDIA A100-SXM4-40GB (of CUDA_VISIBLE_DEVICES)"
    first, second = _environments(inventory, 2)
    assert first == {"CUDA_VISIBLE_DEVICES": "6,3"}  # in the order that the user's numbers count in
    assert second["CUDA_VISIBLE_DEVICES"] == "GPU-00000001-aaaa-bbbb-cccc-000000000001,2"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_user_who_has_hidden_all_gpus_trains_on_the_cpu(hidden):
    inventory = from_nvidia(EIGHT, {"CUDA_VISIBLE_DEVICES": hidden})
    assert inventory.kind is DeviceKind.NONE
    assert _environments(inventory, 2) == [{}, {}]


def test_a_divided_gpu_counts_by_its_parts_of_which_a_process_can_use_one():
    inventory = from_nvidia(MIG, {})
    assert [id[:7] for id in inventory.ids] == ["MIG-c6d", "MIG-cba", "1"]
    assert str(inventory) == "2 NVIDIA A100-SXM4-40GB MIG 3g.20gb, 1 NVIDIA A100-SXM4-40GB"
    assert [one["CUDA_VISIBLE_DEVICES"][:7] for one in _environments(inventory, 1)] == ["MIG-c6d"]
    with pytest.raises(UsageError, match="a part of a GPU"):
        assign(inventory, 1, "2", None, "jax")
    with pytest.raises(UsageError, match="one part of a GPU"):
        assign(inventory, 1, f"{inventory.ids[0]},{inventory.ids[2]}", None, "jax")


def test_on_rocm_one_variable_is_set_and_not_both():
    assert _environments(from_rocm(ROCM, {}), 2) == [{"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "1"}]
    assert str(from_rocm(ROCM, {})) == "2 AMD Instinct MI250X"
    # The user's lower layer has hidden one: what is left counts from 0.
    assert _environments(from_rocm(ROCM, {"ROCR_VISIBLE_DEVICES": "1"}), 1) == [{"HIP_VISIBLE_DEVICES": "0"}]
    assert from_rocm("not json", {}) == Inventory()


def test_a_worker_with_some_chips_of_a_tpu_host_is_told_how_they_lie():
    inventory = from_tpu(4, TPU)
    assert str(inventory) == "4 TPU v4-8 chip"
    halves = _environments(inventory, 2)
    assert halves[1] == {
        "TPU_VISIBLE_CHIPS": "2,3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    assert _environments(inventory, 1) == [{"TPU_VISIBLE_CHIPS": "0,1,2,3"}]  # all of them lie as they do
    with pytest.raises(UsageError, match="3 TPU chips per worker"):
        assign(inventory, 1, "3", None, "jax")
    with pytest.raises(UsageError, match="belongs to one process"):
        assign(inventory, 2, "shared", None, "jax")


def test_devices_are_listed_by_hand():
    visible = [one["CUDA_VISIBLE_DEVICES"] for one in _environments(from_nvidia(EIGHT, {}), 2, "7,0;2,3")]
    assert visible == ["7,0", "2,3"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in _environments(from_nvidia(EIGHT, {}), 3, "2")] == [
        "0,1",
        "2,3",
        "4,5",
    ]


@pytest.mark.parametrize(
    ("workers", "asked", "says"),
    [
        (2, "0,1;2,9", "there is no device '9'; there is 0, 1, 2"),
        (2, "zero;one", "there is no device 'zero'"),
        (2, "0;;1", "a worker's list is empty"),
        (2, "0,1;1,2", r"device 1 is given more than once \(worker-0, worker-1\)"),
        (1, "0,0", "device 0 is given more than once"),
        (3, "0,1;2,3", "lists for 2 workers, and there are 3"),
        (2, "0,1;2", "different numbers of devices"),
        (9, None, "9 workers .* for 8 devices .*-n 8, or --devices shared"),
        (2, "5", "2 workers with 5 devices each need 10, and there are 8"),
    ],
)
def test_what_can_not_be_given_is_refused_with_what_there_is(workers, asked, says):
    with pytest.raises(UsageError, match=says):
        assign(from_nvidia(EIGHT, {}), workers, asked, None, "jax")


def test_who_shares_a_device_takes_a_part_of_its_memory():
    inventory = from_nvidia("\n".join(EIGHT.splitlines()[:2]), {})
    environments = _environments(inventory, 3, "shared")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["0", "1", "0"]
    assert [one.get("XLA_PYTHON_CLIENT_MEM_FRACTION") for one in environments] == ["0.375", None, "0.375"]
    assert environments[0]["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    users = _environments(inventory, 3, "shared", environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"})
    assert users[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2"


def test_auto_is_one_worker_on_jax_and_one_per_device_elsewhere():
    eight = from_nvidia(EIGHT, {})
    assert [workers_for(eight, backend) for backend in ("jax", "tensorflow", "torch")] == [1, 8, 8]
    assert workers_for(from_nvidia(MIG, {}), "jax") == 3  # no process could use more than one of them
    assert workers_for(Inventory(), "torch") == 1


def test_servers_have_no_devices_and_neither_have_workers_that_are_to_have_none():
    given = assign(from_nvidia(EIGHT, {}), 2, None, None, "jax")
    assert environment_without(given) == {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    assert environment_without(assign(Inventory(), 2, None, None, "jax")) == {}
    assert _environments(from_nvidia(EIGHT, {}), 2, "0")[1] == {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def test_virtual_devices_leave_the_users_flags_as_they_are():
    count = "--xla_force_host_platform_device_count"
    assert _environments(Inventory(), 1, virtual=4) == [{"XLA_FLAGS": f"{count}=4"}]
    assert with_virtual("--xla_cpu_max_isa=AVX2", 2) == f"--xla_cpu_max_isa=AVX2 {count}=2"
    assert with_virtual(f"{count}=2", 2) == f"{count}=2"
    with pytest.raises(UsageError, match="--devices-per-worker 4, but XLA_FLAGS has"):
        with_virtual(f"--a=1 {count}=2", 4)


@pytest.mark.parametrize(
    ("asked", "virtual", "backend", "says"),
    [
        (None, 4, "torch", "torch computes on one device per worker"),
        (None, 0, "jax", "at least 1 device"),
        ("2", None, "jax", "no accelerators that Shoal could find. On a CPU, --devices-per-worker"),
        ("2", 2, "jax", "leave one out"),
    ],
)
def test_without_accelerators_it_is_said_what_there_can_be(asked, virtual, backend, says):
    with pytest.raises(UsageError, match=says):
        assign(Inventory(), 2, asked, virtual, backend)


def test_devices_that_the_installed_jax_can_not_use_are_found_and_not_given():
    inventory = for_backend(from_nvidia(EIGHT, {}), "jax", {"JAX_PLATFORMS": "cpu"})
    given = assign(inventory, 2, None, None, "jax")
    assert told(inventory, given, MEMBERS) == "8 NVIDIA A100-SXM4-40GB, not used: JAX_PLATFORMS is cpu"
    with pytest.raises(UsageError, match="JAX_PLATFORMS is cpu"):
        assign(inventory, 2, "1", None, "jax")


def test_what_was_found_and_given_is_said():
    inventory = from_nvidia(EIGHT, {})
    text = told(inventory, assign(inventory, 2, "1", None, "jax"), MEMBERS)
    assert text == "8 NVIDIA A100-SXM4-40GB · worker-0: 0 · worker-1: 1"
    assert told(Inventory(), assign(Inventory(), 2, None, None, "jax"), MEMBERS) == ""


def test_the_hosts_tools_are_asked(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && cat <<'E'\n{EIGHT}\nE\n")
    tool.chmod(0o755)
    path = f"{tmp_path}:/bin:/usr/bin"
    assert len(read_inventory({"PATH": path}).ids) == 8
    assert read_inventory({"PATH": path, "CUDA_VISIBLE_DEVICES": "3"}).ids == ("3",)
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9\n")
    assert read_inventory({"PATH": path}) == from_tpu(0, {})


def test_workers_on_another_host_have_as_many_as_the_others():
    here, none = from_nvidia(EIGHT, {}), Inventory()
    two = Devices("", 2, {"worker-0": ("0", "1")})
    assert assign_like(two, here, 2, "jax").given == (("0", "1"), ("2", "3"))
    assert assign_like(None, here, 2, "jax").given == (("0",), ("1",))
    assert assign_like(None, none, 2, "jax").given == ()
    assert assign_like(Devices("", 4, {}), none, 2, "jax").virtual == 4
    with pytest.raises(UsageError, match="no accelerators"):
        assign_like(two, none, 2, "jax")
