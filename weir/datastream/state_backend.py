"""State backends under PyFlink's module name: the place of state per key while a job runs."""

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

    @staticmethod
    def configured(settings: StateConfig) -> "StateBackend":
        """The backend of these settings."""
        if settings.backend is StateBackendKind.HASHMAP:
            return HashMapStateBackend()
        made = EmbeddedRocksDBStateBackend()
        if settings.directory is not None:
            made.set_db_storage_paths(settings.directory)
        return made


class HashMapStateBackend(StateBackend):
    """Python objects in the memory of the slot: the fastest, as long as state fits."""

    def __init__(self) -> None:
        super().__init__(StateConfig())


class EmbeddedRocksDBStateBackend(StateBackend):
    """RocksDB on the local disk of the slot: state larger than memory.

    Raises:
        ConfigError: Incremental checkpoints are asked for, which Weir does not take.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        if enable_incremental_checkpointing:
            raise ConfigError(
                "checkpoints are not incremental: each holds all state; leave "
                "enable_incremental_checkpointing out"
            )
        super().__init__(StateConfig(backend=StateBackendKind.ROCKSDB))

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Always False: a checkpoint holds all state."""
        return False

    def set_db_storage_paths(self, *paths: str) -> None:
        """Set the directory for the databases, on each machine with slots.

        Raises:
            ConfigError: There is more than one; Weir takes one.
        """
        if len(paths) > 1:
            raise ConfigError(f"there is one directory for databases, not {len(paths)}")
        self._settings = StateConfig(
            backend=StateBackendKind.ROCKSDB, directory=paths[0] if paths else None
        )

    def get_db_storage_paths(self) -> list[str] | None:
        """The directory for the databases; None: the one for temporary files."""
        directory = self._settings.directory
        return None if directory is None else [directory]


if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
