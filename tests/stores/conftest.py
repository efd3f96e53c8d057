from __future__ import annotations

from collections.abc import Iterator

import pytest
import s3fs
from tests.s3 import S3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as patched:
        server = S3()
        for name, value in server.environ.items():
            patched.setenv(name, value)
        server.files().mkdir("bucket")
        yield server
        server.close()


@pytest.fixture
def own_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """One that a test may break."""
    server = S3()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    server.files().mkdir("bucket")
    s3fs.S3FileSystem.clear_instance_cache()  # it knows the other one's address
    yield server
    s3fs.S3FileSystem.clear_instance_cache()
    server.close()
