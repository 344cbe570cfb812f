"""Configurations with attribute access, like those of EasyDict, which is not required."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Config(dict[str, Any]):
    """A dict with attribute access to its keys, like `EasyDict`."""

    def __init__(self, *mappings: Any, **more: Any):
        super().__init__()
        for key, value in dict(*mappings, **more).items():
            self[key] = Config(value) if isinstance(value, Mapping) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the config has no key {name!r}; expected one of {', '.join(self)}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = Config(value) if isinstance(value, Mapping) else value


class Configured:
    """Base class of the buffers, which have a default config."""

    config: ClassVar[dict[str, Any]] = {}

    @classmethod
    def default_config(cls) -> Any:
        """Return a copy of the default config, with attribute access to its keys."""
        return Config(cls.config, cfg_type=f"{cls.__name__}Dict")


def merged(default: Mapping[str, Any], cfg: Mapping[str, Any], path: str = "") -> Config:
    """Return `cfg` with defaults for missing keys; raise ValueError for an unknown key."""
    options = {*default, "type", "cfg_type", "import_names"}
    if unknown := cfg.keys() - options:
        raise ValueError(
            f"{path}{min(unknown)} is not an option of this buffer; expected one of "
            f"{', '.join(sorted(options))}"
        )
    config = Config(default)
    for key, value in cfg.items():
        nested = isinstance(value, Mapping) and isinstance(default.get(key), Mapping)
        inner = nested and default[key]
        config[key] = merged(inner, value, f"{path}{key}.") if inner else value
    return config


def location_of(cfg: Mapping[str, Any], exp_name: str | None) -> str:
    """Return the `location` of a config, or by default `replay.db` in the folder `exp_name`.

    Create the folder if it does not exist.
    """
    location = cfg.get("location")
    if location is not None:
        return str(location)
    folder = Path(exp_name or "default_experiment")
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "replay.db")
