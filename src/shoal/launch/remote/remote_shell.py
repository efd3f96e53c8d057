"""How an agent is started on a host: by ssh, by srun. They differ in this, and in what their errors mean."""

from __future__ import annotations

import shlex
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass

from shoal.errors import UsageError


class AbstractRemoteShell(ABC):
    """Runs a command on another host, with our standard streams as its own. Its end is the command's end."""

    program: str
    answer_within: float = 60.0  # seconds, in which an agent says what is there
    may_be_here: bool = True  # whether a host that is this one needs no agent

    @abstractmethod
    def command(self, host: str, words: list[str]) -> list[str]:
        """What to execute here so that these words are executed there."""

    @abstractmethod
    def host_name(self, host: str) -> str:
        """The name or address of what the user calls so. UsageError if there is no such program here."""

    @abstractmethod
    def explain(self, host: str, code: int, said: str) -> str:
        """Why it has ended, of its exit code and of what it said; with what to do about it."""


_ASK_WITHIN = 10.0  # seconds

# What ssh says, what that means and what to do about it, the most telling first.
_SSH_SAYS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "ssh refuses it: its host key has changed. If that was on purpose, remove the old one with `ssh-keygen -R "
        "{host}`; if not, somebody else may answer in its place",
    ),
    (
        "Host key verification failed",
        "ssh refuses it: its host key is not known here. Connect once by hand, `ssh {host}`, and compare the key",
    ),
    ("Could not resolve hostname", "there is no such host, neither by name nor in ssh's configuration"),
    (
        "Permission denied (",
        "ssh was not let in: it must work without a password, by a key or an agent of ssh. Try `ssh -o BatchMode=yes "
        "{host} true`",
    ),
    (
        "Connection refused",
        "nobody listens for ssh there. Is sshd running, and at the port that ssh's configuration has?",
    ),
    ("timed out", "ssh got no answer. Is the host up, and does a firewall let ssh through?"),
    ("No route to host", "there is no way to it from here. Is the host up?"),
    (
        "No module named shoal",
        "Shoal is not installed there for the Python that was started. Install it, or name another: --remote-python",
    ),
)


@dataclass(frozen=True, slots=True)
class Ssh(AbstractRemoteShell):
    """With the user's configuration, and all of its checks of host keys. It never asks for anything."""

    program: str = "ssh"

    @property
    def program_words(self) -> list[str]:
        options = ["BatchMode=yes", "ConnectTimeout=10", "ClearAllForwardings=yes"]
        options += ["ServerAliveInterval=2", "ServerAliveCountMax=4"]  # else a cut cable is never noticed
        options += ["ControlPath=none"]  # a connection that is shared has the settings of whoever opened it
        return [self.program, "-T", *(word for option in options for word in ("-o", option))]

    def command(self, host: str, words: list[str]) -> list[str]:
        return self.script(host, f"exec {shlex.join(words)}")

    def host_name(self, host: str) -> str:
        """As ssh's configuration has it."""
        try:
            asked = subprocess.run(
                [self.program, "-G", "--", host], capture_output=True, text=True, timeout=_ASK_WITHIN, check=False
            )
        except FileNotFoundError:
            text = "there is no ssh on this host: install it, or start the workers with `shoal join`."
            raise UsageError(text) from None
        except subprocess.TimeoutExpired:
            return host
        found = [line.partition(" ")[2] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
        return found[0] if found else host.rpartition("@")[2]

    def script(self, host: str, line: str) -> list[str]:
        """The same, for a line of the shell there."""
        return [*self.program_words, "--", host, line]

    def explain(self, host: str, code: int, said: str) -> str:
        for words, meaning in _SSH_SAYS:
            if words in said:
                return f"{meaning.format(host=host)}.{quoted(said)}"
        if code in (126, 127):
            return (
                "the Python that was to be started is not there. Install Shoal under the same path as here, or name "
                f"another Python with --remote-python.{quoted(said)}"
            )
        how = "ssh failed" if code == 255 else f"the agent ended with code {code}"
        return f"{how}.{quoted(said)}"


@dataclass(frozen=True, slots=True)
class Srun(AbstractRemoteShell):
    """Within a Slurm allocation: a step of one task on one node, which shares it with whatever runs there."""

    program: str = "srun"

    def command(self, host: str, words: list[str]) -> list[str]:
        where = ["--nodes=1", "--ntasks=1", f"--nodelist={host}"]
        return [self.program, *where, "--overlap", "--cpu-bind=none", "--unbuffered", "--", *words]

    def host_name(self, host: str) -> str:
        return host

    def explain(self, host: str, code: int, said: str) -> str:
        return f"the step that srun started there ended with code {code}.{quoted(said)}"


def quoted(said: str) -> str:
    """The last lines that it said, if any."""
    lines = [line.strip() for line in said.splitlines() if line.strip(" @\r")]
    return f" It said: {' '.join(lines[-3:])}" if lines else ""
