"""The bits that trainings come to, kept in golden.json: who changes the code and not the numbers changes none of them.

    cd tests && python -m golden record     before such a change
    cd tests && python -m golden check      after it: every hash is the same, or the differing ones are named

Hashes belong to a machine: another processor or another version of a backend sums in another order (PyTorch's and XLA's
libraries choose their loops by the maker, too).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import product
from pathlib import Path

from shoal.cluster.identity import instruction_set

HERE = Path(__file__).parent
LIST = HERE / "golden.json"
BACKENDS = ("jax", "tensorflow", "torch")
PACKAGES = ("keras", "jax", "tensorflow", "torch", "numpy")
TRAINED = [  # model and optimizer
    ("wide", "momentum"),
    ("convolution", "adam"),
    ("dropout", "clipped"),
    ("lstm", "rmsprop"),
    ("attention", "averaged"),
    ("dense", "accumulated"),
    ("gan", "adam"),
]
RUNS = [  # options, and who is killed
    ("-n 1", "nobody"),
    ("-n 3", "nobody"),
    ("-n 2 --transport tcp", "worker-1"),
]
SERVED = [
    ("-n 1 --servers 1", "nobody"),
    ("-n 2 --servers 2", "nobody"),
    ("-n 2 --servers 2 --replicas 2", "server-1"),
    ("-n 3 --servers 2 --replicas 2", "worker-1"),
]
SERVED_TRAINED = [("wide", "momentum"), ("convolution", "adam"), ("attention", "averaged")]


def cases() -> list[tuple[str, str, str, str, str]]:
    """Backend, model, optimizer, options, victim."""
    found = [(*one, *run) for *one, run in product(BACKENDS, TRAINED, RUNS)]
    found += [(*one, *run) for *one, run in product(BACKENDS, SERVED_TRAINED, SERVED)]
    return [(backend, *trained, options, victim) for backend, trained, options, victim in found]


def options_of(options: str) -> str:
    served = " --strategy ps --staleness 0" if "--servers" in options else ""
    return f"{options} --pieces 4 --threads 1{served}"


def train(backend: str, model: str, optimizer: str, options: str, victim: str) -> str:
    """The hash that every worker came to; what went wrong otherwise."""
    with tempfile.TemporaryDirectory(prefix="shoal-golden-") as folder:
        words = ["run", "--backend", backend, *options_of(options).split(), str(HERE / "scripts" / "golden.py")]
        words += [model, optimizer, victim, folder]
        environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        ended = subprocess.run([sys.executable, "-m", "shoal", *words], env=environ, capture_output=True, text=True)
        if ended.returncode:
            return f"failed: {ended.stderr[-500:]}"
        if victim != "nobody" and not (Path(folder) / "killed").exists():
            return f"failed: {victim} was not killed"
        return " ".join(sorted({path.read_text() for path in Path(folder).glob("*.hash")}))


def identity() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES} | {"instructions": instruction_set()}


def main(verb: str) -> int:
    kept = json.loads(LIST.read_text()) if verb == "check" else {"identity": identity(), "hashes": {}}
    if kept["identity"] != identity():
        print(f"golden.json is of another machine: {kept['identity']}; this one: {identity()}", file=sys.stderr)
        return 2
    differing = 0
    for number, case in enumerate(every := cases(), 1):
        name, found = " · ".join(case), train(*case)
        as_kept = verb == "record" or kept["hashes"].get(name) == found
        kept["hashes"][name] = kept["hashes"].get(name, found)
        differing += not as_kept or not found.isalnum()
        print(f"{number}/{len(every)}  {name}: {found[:300]}{'' if as_kept else ', not as kept'}", flush=True)
    if verb == "record":
        LIST.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{len(every) - differing} of {len(every)} as they should be")
    return 1 if differing else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["record"], ["check"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
