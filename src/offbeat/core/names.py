"""What an experiment file can name: members of a base, from offbeat, from installed packages, or from the user's files.

A name with a colon, `package.module:Class`, is imported. Modules are looked for as Python does, and then in the folders
of `search`: the experiment file's and the working folder. Other packages announce names through entry points.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.core.errors import SettingError, nearest

_MEMBERS: dict[Any, dict[str, Any]] = {}
_GROUPS: dict[Any, str] = {}
_FUNCTIONS: dict[Any, Callable[[Any, str], Any]] = {}
_searched: list[Path] = []  # the folders of the last call of `search`


def register(
    base: Any, members: Mapping[str, Any], group: str = "", functions: Callable[[Any, str], Any] | None = None
) -> None:
    """Give a base its named members.

    group: the entry points that add more.   functions: what a function of the user's own stands for, with its name.
    """
    if functions is not None:
        _FUNCTIONS[base] = functions
    _MEMBERS.setdefault(base, {}).update(members)
    if group:
        _GROUPS[base] = group


def members(base: Any) -> Mapping[str, Any]:
    """The members of a base by name; empty for anything that is no base."""
    try:
        known = _MEMBERS.get(base)
    except TypeError:  # unhashable hints
        return {}
    if known is None:
        return {}
    return {**_announced(_GROUPS[base]), **known} if base in _GROUPS else known


def loaded(base: Any) -> dict[str, Any]:
    """The same with those that packages announce imported."""
    return {name: find(base, name, name) for name in members(base)}


@cache
def _announced(group: str) -> Mapping[str, Any]:
    return {point.name: Announced(point.name, point.value) for point in entry_points(group=group)}


class Announced(NamedTuple):
    """A member that an installed package announces; imported when it is used."""

    name: str
    value: str

    @property
    def line(self) -> str:
        """Where it comes from."""
        return f"from {self.value}"


def find(base: Any, name: str, where: str) -> Any:
    """The member of this name."""
    if imported(name):
        found = import_name(name, where)
        if isinstance(found, type):
            _check_kind(base, found, f"{where}: {name}")
        elif base in _FUNCTIONS:
            if not callable(found):
                raise SettingError(f"{where}: {name} is a {type(found).__name__}, not a class or function")
            return _FUNCTIONS[base](found, name)
        return found
    known = members(base)
    if name not in known:
        raise SettingError(f'{where} = "{name}": unknown; {nearest(name, known)}')
    return import_name(known[name].value, name) if isinstance(known[name], Announced) else known[name]


def _check_kind(base: Any, kind: type, said: str) -> None:
    """Refuse a class of the user's own that can be no member of a base."""
    if getattr(base, "_is_protocol", False):
        for name in _methods(base):
            if not any(name in vars(each) for each in kind.__mro__):
                raise SettingError(f"{said} cannot be used here: it has no method {name}")
    elif isinstance(base, type) and is_dataclass(base) and not issubclass(kind, base):  # others a factory returns
        raise SettingError(f"{said} is not a class derived from {base.__module__.split('.')[0]}.{base.__name__}")


def imported(name: Any) -> bool:
    """Whether a name says what to import."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name) is not None


def import_name(name: str, where: str) -> Any:
    """The object behind `package.module:Name`."""
    path, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(path)
    except ImportError as error:
        if path.endswith(".py"):
            raise SettingError(f'{where}: write "{path.removesuffix(".py")}:{attribute}", without .py') from None
        missing = getattr(error, "name", None)
        if missing is not None and path.split(".")[0] == missing.split(".")[0]:
            raise SettingError(
                f"{where}: no module {path!r}; it was not found next to the experiment file, in the working folder or "
                f"among the installed packages"
            ) from None
        raise SettingError(f"{where}: the module {path!r} cannot be imported ({error})") from error
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"{where}: the module {path!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    _check_file(found, path, where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n in vars(found) if not n.startswith("_")] if inspect.ismodule(found) else []
            raise SettingError(f"{where}: the module {path!r} has no {attribute!r}; {nearest(part, known)}")
        found = getattr(found, part)
    return found


def _check_file(module: Any, path: str, where: str) -> None:
    """Refuse a module that is another one than the file of that name in the folders searched last."""
    loaded = getattr(module, "__file__", None)
    for folder in _searched if loaded else ():
        place = folder.joinpath(*path.split("."))
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file() and not file.samefile(str(loaded)):
                raise SettingError(
                    f"{where}: the module {path!r} is {loaded}, and {file} has the same name; rename one"
                )


def belongs(base: Any, name: str, where: str) -> bool:
    """Whether a class of the user's own is a member of this base: derived from it, or with its methods' parameters."""
    kind = import_name(name, where)
    bases = [each for each in getattr(kind, "__mro__", ()) if each in _MEMBERS]
    return (
        base in bases
        if bases
        else all(
            _arguments(getattr(kind, method, None)) == _arguments(getattr(base, method)) for method in _methods(base)
        )
    )


def _methods(base: Any) -> list[str]:
    found = [name for name, value in vars(base).items() if inspect.isfunction(value)]
    return [name for name in found if name == "__call__" or not name.startswith("_")]


def _arguments(method: Any) -> int:
    return len(inspect.signature(method).parameters) if callable(method) else -1


_FILE = "file:"
_PATHS = ("file", "path", "folder", "texts", "huggingface")  # settings whose text is a path, the last two for short


def all_imported(table: Any) -> Iterator[str]:
    """Every name in a table that would be imported, and every file and folder that would be read, as file:PATH.

    To be checked before a table from another party is used.
    """
    if isinstance(table, Mapping):
        for key, value in table.items():
            if key in _PATHS and isinstance(value, str):
                yield f"{_FILE}{value}"
                continue
            yield from (key,) if imported(key) else ()
            yield from all_imported(value)
    elif isinstance(table, list | tuple):
        for value in table:
            yield from all_imported(value)
    elif imported(table):
        yield table


def files(table: Any) -> Iterator[str]:
    """The paths of the files and folders that a table names."""
    yield from (name.removeprefix(_FILE) for name in all_imported(table) if name.startswith(_FILE))


def homes(table: Any) -> list[str]:
    """The folders in which the modules and the files that a table names were found."""
    found: dict[str, None] = {}
    for name in all_imported(table):
        if name.startswith(_FILE):
            path = name.removeprefix(_FILE)
            near = _near(path)
            found |= {} if near is None or Path(path).is_absolute() else {str(near.resolve()): None}
            continue
        module = sys.modules.get(name.partition(":")[0])
        if module is not None and getattr(module, "__file__", None):
            depth = len(module.__name__.split(".")) - (0 if hasattr(module, "__path__") else 1)
            found[str(Path(str(module.__file__)).resolve().parents[depth])] = None
    return list(found)


def sources(table: Any) -> dict[str, Path]:
    """The files of the modules that a table names, and of those next to them that were imported, by module."""
    named = {_folder(file) for name in all_imported(table) if (file := _file(name.partition(":")[0]))}
    if not named:  # of the thousands of modules, nothing has to be asked
        return {}
    files = {name: _file(name) for name in sorted(sys.modules)}
    return {name: Path(file) for name, file in files.items() if _folder(file) in named and os.path.isfile(file)}


def _file(module: str) -> str:
    """The source file of a module that was imported, "" without one; PyTorch has a module with a relative one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") and os.path.isabs(file) else ""


def _folder(file: str) -> str:
    return _real(os.path.dirname(file))


@cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def searched() -> Sequence[Path]:
    """The folders of the last call of `search`."""
    return tuple(_searched)


def placed(path: str) -> Path:
    """A file or a folder by its path; also looked up in these folders."""
    return (_near(path) or Path()) / path


def _near(path: str) -> Path | None:
    """Where it is found by this path: from the working folder, or from one of these."""
    return next((place for place in (Path(), *searched()) if (place / path).exists()), None)


def search(*folders: Path | str) -> None:
    """Look for modules in these folders, too, after all others."""
    _searched[:] = [Path(folder).resolve() for folder in folders]
    for place in map(str, _searched):
        if place not in sys.path:
            sys.path.append(place)
            importlib.invalidate_caches()
