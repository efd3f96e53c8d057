"""An S3 on this machine, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import s3fs

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class S3:
    """A server with one bucket."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("moto_server.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.environ = {**SETTINGS, "AWS_ENDPOINT_URL": self.url}

    def files(self) -> Any:
        """To look at what is there, past the code that is tested."""
        return s3fs.S3FileSystem(endpoint_url=self.url, key="k", secret="s", skip_instance_cache=True)

    def demand_credentials(self, after: int) -> None:
        """From so many requests on, whoever has no right to it is refused; and nobody here has."""
        url, plain = f"{self.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        request = urllib.request.Request(url, str(after).encode(), plain, method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
