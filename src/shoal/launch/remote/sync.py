"""`--sync`: the script's folder, copied to the other hosts before anything is started there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.errors import UsageError
from shoal.launch.remote.remote_shell import Ssh

_SKIPPED = (".git", "__pycache__", ".venv")
_WITHIN = 600.0  # seconds for one host


def synced_folder(script: str, is_module: bool) -> Path:
    """What is copied: the folder of a script, or the one in which a module is run. UsageError if it can't be meant."""
    folder = Path.cwd() if is_module else Path(script).absolute().parent
    if folder in (Path("/"), Path.home()):
        raise UsageError(f"--sync would copy all of {folder} to every host. Put the script into a folder of its own.")
    return folder


def sync(folder: Path, hosts: Sequence[str], shell: Ssh, say: Callable[[str], None]) -> None:
    """To the same path on each host; what is there and not here stays. UsageError names the host that it failed for."""
    for host in hosts:
        by = _copy(folder, host, shell)
        say(f"{folder} was copied to {host} with {by}")


def _copy(folder: Path, host: str, shell: Ssh) -> str:
    quoted = shlex.quote(str(folder))
    ask = f"mkdir -p {quoted} && {{ rsync --version 2> /dev/null || true; }}"
    has_rsync = _run(host, shell, shell.script(host, ask)).strip()
    if has_rsync and shutil.which("rsync"):
        options = [f"--exclude={name}" for name in _SKIPPED]
        to = f"{_bracketed(host)}:{folder}/"
        _run(host, shell, ["rsync", "-a", "-s", *options, "-e", shlex.join(shell.program_words), f"{folder}/", to])
        return "rsync"
    options = [f"--exclude=./{name}" for name in _SKIPPED] + [f"--exclude=*/{name}" for name in _SKIPPED]
    with subprocess.Popen(["tar", "-C", str(folder), *options, "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        _run(host, shell, shell.script(host, f"tar -C {quoted} -xf -"), tar.stdout)
    if tar.returncode:
        raise UsageError(f"--sync to {host} failed: tar ended with code {tar.returncode}.")
    return "tar"


def _run(host: str, shell: Ssh, command: list[str], stdin: object = subprocess.DEVNULL) -> str:
    try:
        done = subprocess.run(command, stdin=stdin, capture_output=True, timeout=_WITHIN)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise UsageError(f"--sync to {host} took more than {_WITHIN:.0f} s. Copy the folder once by hand.") from None
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        raise UsageError(f"--sync to {host} failed: {shell.explain(host, done.returncode, said)}")
    text: str = done.stdout.decode(errors="replace")
    return text


def _bracketed(host: str) -> str:
    """As rsync wants an IPv6 address."""
    return f"[{host}]" if host.count(":") > 1 else host
