"""Step time and bytes with each codec and with local SGD between two hosts, beside torch DDP (and its fp16 hook).

The hosts are network namespaces with a cable between them, which `tc tbf` limits (needs root). All codecs take turns in
one run, there and back, so that the ratio to the first is of the same minute.

    python bench/links.py [--rates 100 1000] [--workers 1 2] [--networks large conv] [--codecs none bf16 ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))
from tests.network import FIRST, Hosts  # noqa: E402

CODECS = ("none", "bf16", "int8", "topk:0.01", "lowrank:4", "local:50", "local:50:int8")
PORT = 4567
PEERS = Path(__file__).parent / "peers"


def limit(hosts: Hosts, mbit: int) -> None:
    """Both directions, to so many Mbit/s; 0: no limit."""
    for name in hosts.names:
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", "cable", "root"], capture_output=True)
        if mbit:
            shape = f"tc qdisc add dev cable root tbf rate {mbit}mbit burst 256kb latency 300ms"
            subprocess.run(["ip", "netns", "exec", name, *shape.split()], check=True)


@contextmanager
def processes(commands: Sequence[tuple[str, list[str], dict[str, str]]], log: Path) -> Iterator[list[Any]]:
    """Commands in namespaces, ended when the block is left."""
    started = []
    try:
        with log.open("ab") as file:
            for namespace, words, environ in commands:
                full = ["ip", "netns", "exec", namespace, *words]
                started.append(subprocess.Popen(full, stdout=file, stderr=file, env={**os.environ, **environ}))
            yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait(30)


def wait_for(path: Path, started: Sequence[Any], log: Path, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end or any(process.poll() not in (None, 0) for process in started):
            raise SystemExit(f"no {path.name}: {log.read_text()[-3000:]}")
        time.sleep(0.1)


def shoal(hosts: Hosts, folder: Path, network: str, workers: int, codecs: Sequence[str]) -> dict[str, Any]:
    out, enough, ticket, log = (folder / name for name in ("out.json", "enough", "ticket", "log"))
    script = [str(PEERS / "links_training.py"), str(out), str(enough), network, *codecs]
    pieces = str(2 * workers)
    run = f"-m shoal run --backend torch -n {workers} --pieces {pieces} --threads 1 --address {FIRST}:{PORT}".split()
    join = f"-m shoal join {FIRST}:{PORT} -n {workers}".split()
    (folder / "r").mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(folder / "r"), "XDG_STATE_HOME": str(folder / "state")}
    first = [sys.executable, *run, "--key-file", str(ticket), *script]
    second = [sys.executable, *join, "--key-file", str(ticket), *script]
    with processes([(hosts.names[0], first, environ)], log) as one:
        wait_for(ticket, one, log)
        with processes([(hosts.names[1], second, environ)], log) as other:
            status = [sys.executable, "-m", "shoal", "status", "--json"]
            while True:
                found = subprocess.run(status, capture_output=True, text=True, env={**os.environ, **environ})
                if found.stdout.count('"training"') >= 2 * workers:
                    break
                if one[0].poll() is not None or other[0].poll() is not None:
                    raise SystemExit(log.read_text()[-3000:])
                time.sleep(0.3)
            enough.touch()
            wait_for(out, [*one, *other], log)
            for process in (*one, *other):
                process.wait(60)
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def ddp(hosts: Hosts, folder: Path, network: str, workers: int) -> dict[str, Any]:
    out, log = folder / "ddp.json", folder / "ddp.log"
    commands = []
    for rank in range(2 * workers):
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(2 * workers),
            "MASTER_ADDR": FIRST,
            "MASTER_PORT": str(PORT + 1),
        }
        environ |= {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(PEERS / "links_ddp.py"), str(out), network]
        commands.append((hosts.names[rank // workers], words, environ))
    with processes(commands, log) as started:
        wait_for(out, started, log)
        for process in started:
            process.wait(60)
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rates", type=int, nargs="*", default=[100, 1000], help="Mbit/s; 0: no limit")
    options.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="per host")
    options.add_argument("--networks", nargs="*", default=["large", "conv"])
    options.add_argument("--codecs", nargs="*", default=list(CODECS))
    options.add_argument("--no-ddp", action="store_true")
    given = options.parse_args()
    print("| network | Mbit/s | workers | | ms per step | of none | MB out per host and step |")
    print("|---|---|---|---|---|---|---|")
    for network in given.networks:
        for rate in given.rates:
            for workers in given.workers:
                with Hosts() as hosts, tempfile.TemporaryDirectory(prefix="links") as folder:
                    limit(hosts, rate)
                    turns = [*given.codecs, *reversed(given.codecs)]
                    found = shoal(hosts, Path(folder), network, workers, turns)
                    if not given.no_ddp:
                        found |= ddp(hosts, Path(folder), network, workers)
                base = median(seconds for seconds, _ in found[given.codecs[0]])
                for name, steps in found.items():
                    seconds, sent = median(s for s, _ in steps), median(b for _, b in steps)
                    line = f"{name} | {seconds * 1e3:,.0f} | {seconds / base:.2f} | {sent / 1e6:.3f}"
                    print(f"| {network} | {rate} | 2 x {workers} | {line} |", flush=True)


if __name__ == "__main__":
    main()
