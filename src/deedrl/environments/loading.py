"""From a reference a user types to the environment class."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import gymnasium

from deedrl.environments import suite
from deedrl.environments.contract import contained
from deedrl.environments.environment import Environment
from deedrl.errors import ConfigError, EnvironmentAuthorError, suggest

IMPORT_LIMIT_S = 300.0
"""Some environments import a deep-learning library, which takes a minute on a busy machine."""
_FORMS = "'deedrl/SupportDesk-v0', 'package.module:Class', 'path/file.py:Class', 'path/file.py' or 'gymnasium:ID'"


def load_environment(ref: str) -> type[Environment]:
    """The environment class behind `ref`: a Gymnasium id, ``package.module:Class`` or ``path/file.py[:Class]``.

    A file without a class name must define exactly one environment; ``gymnasium:ID`` is any other environment that
    Gymnasium knows, played as `GymnasiumGame`. A reference that leads nowhere raises
    `ConfigError`; a module that fails while it is imported raises `EnvironmentAuthorError` with the place.
    """
    suite.register()
    target, _, name = ref.rpartition(":") if ":" in ref else (ref, "", "")
    if target.endswith(".py"):
        module = _import_file(Path(target))
        return _class_in(module, name, ref) if name else _only_class_in(module, ref)
    if target == "gymnasium":
        return _adapted(name)
    if name:
        return _class_in(_import_module(target, ref), name, ref)
    if "/" in ref or ref in gymnasium.registry:
        return _registered(ref)
    raise ConfigError(f"expected an environment as {_FORMS}, got '{ref}'")


def _adapted(game_id: str) -> type[Environment]:
    from deedrl.environments.gymnasium_adapter import adapted

    return adapted(game_id)


def _registered(ref: str) -> type[Environment]:
    try:
        spec = gymnasium.spec(ref)
    except gymnasium.error.Error as error:
        ours = [known for known in gymnasium.registry if known.startswith("deedrl/")]
        raise ConfigError(f"no environment is registered as '{ref}' ({error}){suggest(ref, ours)}") from error
    if isinstance(spec.entry_point, str):
        module_name, _, name = spec.entry_point.partition(":")
        return _class_in(_import_module(module_name, ref), name, ref)
    return _checked(spec.entry_point, ref)


def _import_module(name: str, ref: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        with contained(IMPORT_LIMIT_S, f"importing '{ref}'"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(f"no module '{error.name}' for '{ref}'; expected {_FORMS}") from error
        raise _import_failed(ref, error) from error
    except (ConfigError, EnvironmentAuthorError):
        raise
    except Exception as error:
        raise _import_failed(ref, error) from error


def _import_file(path: Path) -> ModuleType:
    """Imports the file once per process under a name made from its full path."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"no file {path}; expected an environment as {_FORMS}")
    name = f"deedrl_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    _make_importable(path.parent)
    sys.modules[name] = module
    try:
        with contained(IMPORT_LIMIT_S, f"importing '{path}'"):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, EnvironmentAuthorError) or not isinstance(error, Exception):
            raise
        raise _import_failed(str(path), error) from error
    return module


def _make_importable(folder: Path) -> None:
    """Puts `folder` last on the import path, so that modules beside an environment are found and shadow nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_failed(ref: str, error: BaseException) -> EnvironmentAuthorError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return EnvironmentAuthorError(f"importing '{ref}' raised {type(error).__name__}: {error}{place}")


def _class_in(module: ModuleType, name: str, ref: str) -> type[Environment]:
    if not hasattr(module, name):
        raise ConfigError(f"'{ref}': no class '{name}' there{suggest(name, _classes_in(module))}")
    return _checked(getattr(module, name), ref)


def _only_class_in(module: ModuleType, ref: str) -> type[Environment]:
    classes = _classes_in(module)
    if len(classes) != 1:
        found = ", ".join(classes) or "none"
        raise ConfigError(f"'{ref}': expected exactly one environment class, found {found}; write '{ref}:Class'")
    return next(iter(classes.values()))


def _classes_in(module: ModuleType) -> dict[str, type[Environment]]:
    """Environment classes that `module` defines itself, not those it imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value.__module__ == module.__name__
    }


def _checked(found: object, ref: str) -> type[Environment]:
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ConfigError(f"'{ref}': expected a subclass of deedrl.Environment, got {found!r}")
    return found
