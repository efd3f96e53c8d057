"""examples/jobset.yaml is a JobSet as its API defines it, and what it sets is what `shoal worker` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shoal.cli.worker import worker
from shoal.launch.task_place import find_place

MANIFEST = Path(__file__).parents[2] / "examples" / "jobset.yaml"


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with no other fields, as the API server prunes or refuses them."""
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


TEXT, WHOLE, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
QUANTITY = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
RESOURCES = {"type": "object", "additionalProperties": QUANTITY}
# The part of jobset.x-k8s.io/v1alpha2, batch/v1 and v1 that a training uses.
CONTAINER = closed(
    ["name", "image"],
    name=NAME,
    image=TEXT,
    workingDir=TEXT,
    command={"type": "array", "items": TEXT},
    args={"type": "array", "items": TEXT},
    env={
        "type": "array",
        "items": closed(
            ["name"],
            name=TEXT,
            value=TEXT,  # a number in quotes: the API refuses others
            valueFrom=closed([], fieldRef=closed(["fieldPath"], apiVersion=TEXT, fieldPath=TEXT)),
        ),
    },
    ports={"type": "array", "items": closed(["containerPort"], containerPort={"type": "integer", "maximum": 65535})},
    resources=closed([], requests=RESOURCES, limits=RESOURCES),
    volumeMounts={
        "type": "array",
        "items": closed(["name", "mountPath"], name=NAME, mountPath=TEXT, readOnly=FLAG, subPath=TEXT),
    },
)
VOLUME = closed(
    ["name"],
    name=NAME,
    secret=closed([], secretName=TEXT, defaultMode={"type": "integer", "minimum": 0, "maximum": 0o777}),
    persistentVolumeClaim=closed(["claimName"], claimName=TEXT, readOnly=FLAG),
)
POD = closed(
    ["containers"],
    restartPolicy={"enum": ["Never", "OnFailure"]},  # of a Job
    securityContext=closed([], runAsUser=WHOLE, runAsGroup=WHOLE, fsGroup=WHOLE, runAsNonRoot=FLAG),
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
    volumes={"type": "array", "items": VOLUME},
)
JOB = closed(
    ["template"],
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    parallelism=WHOLE,
    completions=WHOLE,
    backoffLimit=WHOLE,
    template=closed(["spec"], metadata={"type": "object"}, spec=POD),
)
JOBSET = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=closed(["name"], name=NAME, namespace=NAME, labels={"type": "object"}, annotations={"type": "object"}),
    spec=closed(
        [],
        network=closed([], enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
        coordinator=closed(["replicatedJob"], replicatedJob=TEXT, jobIndex=WHOLE, podIndex=WHOLE),
        failurePolicy=closed(
            [], maxRestarts=WHOLE, restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]}
        ),
        suspend=FLAG,
        ttlSecondsAfterFinished=WHOLE,
        replicatedJobs={
            "type": "array",
            "items": closed(["name", "template"], name=NAME, replicas=WHOLE, template=closed(["spec"], spec=JOB)),
        },
    ),
)


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_is_a_jobset(manifest: Any) -> None:
    jsonschema.validate(manifest, JOBSET)
    broken = yaml.safe_load(MANIFEST.read_text().replace("completionMode", "completionMod"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, JOBSET)


def test_its_pods_are_as_many_tasks_as_it_says_and_find_the_first(manifest: Any) -> None:
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    (replicated,) = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    where = next(each["valueFrom"]["fieldRef"] for each in container["env"] if each["name"] == "SHOAL_FIRST")
    assert where["fieldPath"] == "metadata.annotations['jobset.sigs.k8s.io/coordinator']"
    assert spec["coordinator"] == {"replicatedJob": replicated["name"], "jobIndex": 0, "podIndex": 0}
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"] == int(env["SHOAL_TASKS"])
    assert spec["network"]["enableDNSHostnames"]
    first = f"{name}-{replicated['name']}-0-0.{name}"  # what JobSet writes into the annotation
    told = {"SHOAL_TASKS": env["SHOAL_TASKS"], "SHOAL_FIRST": first}
    places = [find_place(told | {"JOB_COMPLETION_INDEX": str(n)}) for n in range(job["completions"])]
    assert [place.rank for place in places] == [0, 1, 2, 3]
    assert {place.first for place in places} == {first}


def test_its_command_is_understood_and_its_secret_is_mounted_where_it_looks(manifest: Any) -> None:
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, verb, *words = container["command"]
    assert (program, verb) == ("shoal", "worker")
    options = worker.make_context("worker", list(words)).params
    assert options["words"] == ("train.py",)
    assert options["port"] == container["ports"][0]["containerPort"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    key_file = next(each["value"] for each in container["env"] if each["name"] == "SHOAL_KEY_FILE")
    assert key_file == f"{mounts['key']}/key"
    assert options["checkpoint"] == mounts["checkpoints"]
    secret = next(each["secret"] for each in pod["volumes"] if each["name"] == "key")
    assert secret["defaultMode"] & 0o037 == 0, "others could read it, and Shoal would refuse it"
