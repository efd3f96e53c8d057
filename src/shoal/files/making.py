"""What makes many files out of others, or fetches them: done once, by the chief. And temporary files."""

from __future__ import annotations

import email.message
import functools
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from typing import Any

from shoal.files import system
from shoal.files.files import Files, Operation
from shoal.files.replacing import plain, wrap


class Making:
    """What makes many files, or fetches them. And temporary ones, which are left alone."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def install(self) -> None:
        wrap(urllib.request, "urlretrieve", self._urlretrieve(urllib.request.urlretrieve))
        wrap(shutil, "copyfile", self._copy("copyfile", shutil.copyfile))
        wrap(shutil, "copytree", self._copy("copytree", shutil.copytree))
        wrap(shutil, "move", self._move(shutil.move))
        wrap(shutil, "unpack_archive", self._unpack(shutil.unpack_archive))
        for archive in (zipfile.ZipFile, tarfile.TarFile):
            wrap(archive, "extractall", self._extract_all(archive.extractall))
            wrap(archive, "extract", self._extract(archive.extract))
        for name in ("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile"):
            wrap(tempfile, name, self._temporary(getattr(tempfile, name)))

    def _urlretrieve(self, original: Any) -> Any:
        def urlretrieve(url: Any, filename: Any = None, *args: Any, **more: Any) -> Any:
            filename, path = self._files.where(filename)
            do = functools.partial(original, url, filename, *args, **more)
            if path is None:
                return do()
            return self._files.make(
                Operation("fetch", path, is_long=True), do, lambda: (filename, email.message.Message())
            )

        return urlretrieve

    def _copy(self, operation: str, original: Any) -> Any:
        def copy(src: Any, dst: Any, *args: Any, **more: Any) -> Any:
            dst, path = self._files.where(dst)
            do = functools.partial(original, src, dst, *args, **more)
            return do() if path is None else self._files.make(Operation(operation, path, is_long=True), do, lambda: dst)

        return copy

    def _move(self, original: Any) -> Any:
        def move(src: Any, dst: Any, *args: Any, **more: Any) -> Any:
            (src, source), (dst, target) = self._files.where(src), self._files.where(dst)
            do = functools.partial(original, src, dst, *args, **more)
            if source is None or target is None or self._files.left.has(source):
                return do()

            def moved() -> Any:
                self._files.private.remove(source)
                within = os.path.join(target, os.path.basename(source))
                return os.path.join(dst, os.path.basename(source)) if system.exists(within) else dst

            return self._files.make(Operation("move", target, leaves=source, is_long=True), do, moved)

        return move

    def _unpack(self, original: Any) -> Any:
        def unpack_archive(filename: Any, extract_dir: Any = None, *args: Any, **more: Any) -> Any:
            extract_dir, path = self._files.where(extract_dir or os.getcwd())
            do = functools.partial(original, filename, extract_dir, *args, **more)
            return (
                do() if path is None else self._files.make(Operation("extract", path, is_long=True), do, lambda: None)
            )

        return unpack_archive

    def _extract_all(self, original: Any) -> Any:
        def extractall(self_: Any, path: Any = None, *args: Any, **more: Any) -> Any:
            path, name = self._files.where(path or os.getcwd())
            do = functools.partial(original, self_, path, *args, **more)
            return (
                do() if name is None else self._files.make(Operation("extract", name, is_long=True), do, lambda: None)
            )

        return extractall

    def _extract(self, original: Any) -> Any:
        def extract(self_: Any, member: Any, path: Any = "", *args: Any, **more: Any) -> Any:
            inner = str(getattr(member, "filename", None) or getattr(member, "name", member))
            path, folder = self._files.where(path or os.getcwd())
            do = functools.partial(original, self_, member, path, *args, **more)
            if folder is None:
                return do()
            target = os.path.normpath(os.path.join(folder, inner.lstrip("/")))
            return self._files.make(Operation("extract", target, is_long=True), do, lambda: target)

        return extract

    def _temporary(self, original: Any) -> Any:
        def make(*args: Any, **more: Any) -> Any:
            made = self._files.unfollowed(lambda: original(*args, **more))
            name = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
            if (path := plain(name)) is not None:
                self._files.left.add(path)
            return made

        return make
