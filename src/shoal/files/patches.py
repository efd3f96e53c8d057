"""The places where Python's functions on files are replaced, in a process that runs a script together with others.

Usual calls are looked at: a path that is text, no folder descriptor, no opener. All others go to Python's own function
as they are. So do those that come from a module which took the function before this one was imported, except for the
few of `_TAKEN_EARLY`.
"""

from __future__ import annotations

import shutil
import sys
import urllib.request
from types import ModuleType

from shoal.files.changing import Changing
from shoal.files.files import Files, Script
from shoal.files.looking import Looking
from shoal.files.making import Making
from shoal.files.opening import Opening

_TAKEN_EARLY = (
    (shutil, "rmtree"),
    (shutil, "copyfile"),
    (shutil, "copytree"),
    (shutil, "move"),
    (shutil, "unpack_archive"),
    (urllib.request, "urlretrieve"),
)


def follow(files: Files, script: Script) -> None:
    """From now on the script's operations on files are looked at. Once per process, before the script begins."""
    files.attach(script)
    early = [(module, name, getattr(module, name)) for module, name in _TAKEN_EARLY]
    for kind in (Opening, Looking, Changing, Making):
        kind(files).install()
    modules: list[object] = list(sys.modules.values())
    for loaded in modules:
        if not issubclass(type(loaded), ModuleType):
            continue  # cffi's libraries, which have no dict and say that they are modules
        known = object.__getattribute__(loaded, "__dict__")  # not vars(), which would load what is loaded when used
        for module, name, original in early:
            if known.get(name) is original:
                known[name] = getattr(module, name)
