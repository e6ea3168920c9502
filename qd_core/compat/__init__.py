"""Running programs that say ``import quadrants``: the name then means this package.

``python -m qd_core.compat run script.py`` runs one; ``qd_core.compat.install()`` at its start does the same from
inside. Child processes follow, by a folder at the front of ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import qd_core
from qd_core.compat.surface import LANG, PUBLIC, VERSION

__all__ = ["NAME", "install"]

NAME = "quadrants"
CHILD = Path(__file__).parent / "child"
"""Holds a package called `NAME` whose import installs it: what child processes find."""


class _Forwarding(ModuleType):
    """A module with some names of its own; the others are the package's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(qd_core, name)
        except AttributeError as error:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from error

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(qd_core)})


class _Finder:
    """Finder and loader of the package and of the submodules that programs import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Answer for the names that programs import."""
        first, _, rest = name.partition(".")
        if first != NAME:
            return None
        known = rest in ("", "lang") or rest in PUBLIC or (rest.startswith("lang.") and rest[5:] in LANG)
        return ModuleSpec(name, self, is_package=rest in ("", "lang")) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module whose other names are the package's."""
        return _Forwarding(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill in what the module has of its own, or put the public module in its place."""
        rest = module.__name__.partition(".")[2]
        if rest in PUBLIC:
            sys.modules[module.__name__] = import_module(f"qd_core.{rest}")
        elif rest.startswith("lang."):
            vars(module).update(LANG[rest[5:]]())
        elif not rest:
            vars(module).update(
                __version__=VERSION, __version_str__=".".join(map(str, VERSION)), __all__=list(qd_core.__all__)
            )
            import_module(f"{NAME}.lang.impl")
            import_module(f"{NAME}.lang.exception")


def install(*, children: bool = True) -> ModuleType:
    """Make ``import quadrants`` mean this package, whether another is installed or not.

    Parameters
    ----------
    children : bool
        Also in processes that this one starts.

    Returns
    -------
    module
        What ``import quadrants`` gives.

    Raises
    ------
    RuntimeError
        Another package of that name was imported already.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        known = sys.modules.pop(NAME, None)
        if known is not None and Path(str(getattr(known, "__file__", ""))).parents[1] != CHILD:
            sys.modules[NAME] = known
            raise RuntimeError(f"another {NAME} was imported already: call qd_core.compat.install() before it")
        sys.meta_path.insert(0, _Finder())
    if children:
        paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(CHILD)]
        home = str(Path(qd_core.__file__).parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join([str(CHILD), *paths, *([home] if home not in paths else [])])
    return import_module(NAME)
