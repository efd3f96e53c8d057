"""What makes, moves and removes: real on the chief alone."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

from shoal.files import system
from shoal.files.files import Files, Operation
from shoal.files.replacing import replace, wrap


class Changing:
    """What makes, moves and removes."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def install(self) -> None:
        for name in ("mkdir", "rmdir", "remove", "unlink", "rename", "replace", "symlink", "link"):
            replace(name, getattr(self, name))
        for name in ("chmod", "utime", "truncate"):
            replace(name, getattr(self, name))
        wrap(shutil, "rmtree", self._rmtree(shutil.rmtree))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        path, name = self._files.where(path) if dir_fd is None else (path, None)
        if name is None:
            return system.mkdir(path, mode, dir_fd=dir_fd)

        def alone(did: bool) -> None:
            if self._files.where(name)[1] != name:
                return  # the chief's is meant, which has another number in its name
            if not system.exists(name):
                self._files.private.mkdir(name)
            elif not did and not self._files.was_made(name):
                system.mkdir(path, mode)  # raises: it was there before the run

        def do() -> None:
            try:
                system.mkdir(path, mode)
            except FileExistsError:
                # The chief before this one may have made it, and died before it could say so.
                if not (self._files.has_taken_over and self._files.was_made(name)):
                    raise

        return self._files.change(Operation("mkdir", name), do, alone)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove(path, dir_fd, system.rmdir)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove(path, dir_fd, system.unlink)

    unlink = remove

    def rename(self, src: Any, dst: Any, **descriptors: Any) -> None:
        self._move(src, dst, descriptors, system.rename)

    def replace(self, src: Any, dst: Any, **descriptors: Any) -> None:
        self._move(src, dst, descriptors, system.replace)

    def symlink(self, src: Any, dst: Any, *args: Any, **more: Any) -> None:
        self._tie(src, dst, lambda: system.symlink(src, dst, *args, **more), more)

    def link(self, src: Any, dst: Any, **more: Any) -> None:
        self._tie(src, dst, lambda: system.link(src, dst, **more), more)

    def _remove(self, path: Any, dir_fd: int | None, original: Callable[..., None]) -> None:
        path, name = self._files.where(path) if dir_fd is None else (path, None)
        if name is None:
            return original(path, dir_fd=dir_fd)
        operation = Operation("remove", name, leaves=name)
        self._files.change(operation, lambda: original(path), lambda did: self._files.private.remove(name))
        self._files.left.discard(name)
        return None

    def _move(self, src: Any, dst: Any, descriptors: Any, original: Callable[..., None]) -> None:
        (src, source), (dst, target) = self._files.where(src), self._files.where(dst)
        if descriptors or source is None or target is None:
            return original(src, dst, **descriptors)

        def alone(did: bool) -> None:
            if self._files.left.has(source):  # a temporary file of its own
                self._files.private.take(source, target)
            else:
                self._files.private.rename(source, target)

        return self._files.change(Operation("rename", target, leaves=source), lambda: original(src, dst), alone)

    def _tie(self, src: Any, dst: Any, do: Callable[[], None], more: Any) -> None:
        (_, source), (_, target) = self._files.where(src), self._files.where(dst)
        if more or source is None or target is None:
            return do()

        def alone(did: bool) -> None:
            if not system.exists(target):
                system.symlink(source, self._files.private.place(target))

        return self._files.change(Operation("link", target), do, alone)

    def chmod(self, path: Any, *args: Any, **more: Any) -> None:
        self._touch(system.chmod, path, args, more)

    def utime(self, path: Any, *args: Any, **more: Any) -> None:
        self._touch(system.utime, path, args, more)

    def truncate(self, path: Any, *args: Any, **more: Any) -> None:
        self._touch(system.truncate, path, args, more)

    def _touch(self, original: Callable[..., None], path: Any, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        """Changes a file as it lies there: a follower's own, nobody else's."""
        path, name = self._files.where(path)
        if name is None or not self._files.follows or self._files.left.has(name):
            return original(path, *args, **more)
        place = self._files.private.find(name)
        if place is not None or not system.exists(name):  # which raises
            original(place or path, *args, **more)
        return None

    def _rmtree(self, original: Any) -> Callable[..., None]:
        def rmtree(path: Any, *args: Any, **more: Any) -> None:
            path, name = self._files.where(path) if more.get("dir_fd") is None else (path, None)
            if name is None:
                return original(path, *args, **more)  # type: ignore[no-any-return]
            do = functools.partial(original, path, *args, **more)
            self._files.change(Operation("rmtree", name), do, lambda did: self._files.private.remove(name))
            self._files.left.discard(name)
            return None

        return rmtree
