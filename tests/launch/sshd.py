"""Real sshds on other hosts, which are network namespaces; whatever they start belongs to the test's world."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.network import SECOND

from .launched import World, eventually

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
FAR = "far"  # what ssh's configuration calls the host


class Sshd:
    """Running, at port 22 of `namespace`, from its making to `close`."""

    def __init__(
        self, world: World, namespace: str, hides: str | None = None, name: str = FAR, address: str = SECOND
    ) -> None:
        """`hides`: a program that the host does not have. It has a folder `project` that is not the test's."""
        self._folder = world.folder / f"ssh-{name}"
        self._folder.mkdir(mode=0o700)
        self._address = address
        Path("/run/sshd").mkdir(exist_ok=True)
        self._make_key("host")
        self._make_key("user")
        self.know(self._public("host"))
        shutil.copy(self._folder / "user.pub", self._folder / "authorized")
        self.runtime = world.folder / name
        self.runtime.mkdir(mode=0o700)
        seen = {
            **{name: world.environ[name] for name in ("XDG_CACHE_HOME", "SCENE")},
            "XDG_RUNTIME_DIR": self.runtime,
            "XDG_STATE_HOME": self.runtime / "state",
            "PYTHONPATH": self.runtime / "site",
        }
        of_world = " ".join(f"{name}={value}" for name, value in seen.items())
        self._write(
            "sshd_config",
            f"ListenAddress {address}",
            f"HostKey {self._folder}/host",
            f"AuthorizedKeysFile {self._folder}/authorized",
            "StrictModes no",
            "PidFile none",
            "UsePAM no",
            f"SetEnv {of_world}",
        )
        with (world.folder / "ssh_config").open("a") as config:
            config.write(
                f"Host {name}\n  HostName {address}\n  User root\n  IdentityFile {self._folder}/user\n"
                f"  UserKnownHostsFile {self._folder}/known\n  GlobalKnownHostsFile /dev/null\n"
            )
        # OpenSSH finds its configuration by the system's list of users, not by HOME.
        program = self._folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {world.folder}/ssh_config "$@"\n')
        program.chmod(0o755)
        world.environ["PATH"] = f"{program.parent}:{world.environ['PATH']}"
        self._log = (self._folder / "log").open("wb")
        # A folder of its own in place of the test's, and a program that is not there: in a mount namespace.
        self.own_folder = world.folder / "project"
        self.own_folder.mkdir(exist_ok=True)
        mounts = f"mount -t tmpfs none {self.own_folder}"
        mounts += f" && mount --bind /dev/null {hides}" if hides is not None else ""
        start = f"{mounts} && exec {SSHD} -D -e -f {self._folder}/sshd_config"
        self._words = ["ip", "netns", "exec", namespace, "unshare", "-m", "sh", "-c", start]
        self._process = self._started()
        eventually(lambda: self.begun == 1, "sshd listens")

    @property
    def begun(self) -> int:
        """How often it has begun to listen."""
        return (self._folder / "log").read_text().count("listening")

    @property
    def pid(self) -> int:
        """Whose root is the host's."""
        return self._process.pid

    def start_again(self) -> None:
        """Its host was killed, and has booted."""
        self._process.wait()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words, stderr=self._log, stdin=subprocess.DEVNULL)

    def know(self, key: str) -> None:
        """From now on this is the host's key, as far as ssh knows."""
        (self._folder / "known").write_text(f"{self._address} {key}\n")

    def change_key(self) -> None:
        """As if another host answered."""
        self._make_key("other")
        self.know(self._public("other"))

    def forget_user(self) -> None:
        """Nobody's key is let in."""
        (self._folder / "authorized").write_text("")

    def customize(self, text: str) -> None:
        """What every Python process there does first."""
        (self.runtime / "site").mkdir()
        (self.runtime / "site" / "sitecustomize.py").write_text(text)

    def close(self) -> None:
        """May be called twice."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _make_key(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
        subprocess.run(words, check=True, capture_output=True, timeout=20)

    def _public(self, name: str) -> str:
        return " ".join((self._folder / f"{name}.pub").read_text().split()[:2])

    def _write(self, name: str, *lines: str) -> None:
        (self._folder / name).write_text("".join(f"{line}\n" for line in lines))
