"""State backends under PyFlink's module name: the place of state per key while a job runs."""

from dataclasses import replace
from typing import TYPE_CHECKING

from weir.common.missing_names import MissingNames, module_attribute
from weir.config import StateBackendKind, StateConfig
from weir.errors import ConfigError

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "StateBackend"]


class StateBackend(MissingNames):
    """The place of state per key while a job runs; a savepoint restores into any."""

    def __init__(self, settings: StateConfig) -> None:
        self._settings = settings

    @property
    def settings(self) -> StateConfig:
        """The settings of the job that it stands for."""
        return self._settings

    def applied_to(self, state: StateConfig) -> StateConfig:
        """The settings of a job with this backend; all else about state stays as it is."""
        own = self._settings
        incremental = state.incremental if own.incremental is None else own.incremental
        return replace(state, backend=own.backend, directory=own.directory, incremental=incremental)

    @staticmethod
    def configured(settings: StateConfig) -> "StateBackend":
        """The backend of these settings."""
        if settings.backend is StateBackendKind.HASHMAP:
            return HashMapStateBackend()
        made = EmbeddedRocksDBStateBackend(settings.incremental)
        if settings.directory is not None:
            made.set_db_storage_paths(settings.directory)
        return made


class HashMapStateBackend(StateBackend):
    """Python objects in the memory of the slot: the fastest, as long as state fits."""

    def __init__(self) -> None:
        super().__init__(StateConfig())


class EmbeddedRocksDBStateBackend(StateBackend):
    """RocksDB on the local disk of the slot: state larger than memory.

    Args:
        enable_incremental_checkpointing: Whether a checkpoint writes only what changed; None: as
            execution.checkpointing.incremental has it, and without that it does.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(
            StateConfig(
                backend=StateBackendKind.ROCKSDB,
                incremental=enable_incremental_checkpointing,
            )
        )

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether a checkpoint writes only what changed."""
        return self._settings.is_incremental

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the directory for the databases, on each machine with slots.

        Raises:
            ConfigError: There is more than one; Weir takes one.
        """
        if len(paths) > 1:
            raise ConfigError(f"there is one directory for databases, not {len(paths)}")
        self._settings = replace(self._settings, directory=paths[0] if paths else None)

    def get_db_storage_paths(self) -> list[str] | None:
        """The directory for the databases; None: the one for temporary files."""
        directory = self._settings.directory
        return None if directory is None else [directory]


if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
