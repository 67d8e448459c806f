"""The backend that a job is configured with."""

from importlib.util import find_spec

from weir.config import StateBackendKind, StateConfig
from weir.errors import ConfigError
from weir.ids import KeyGroupRange
from weir.state.backends.base import StateTables
from weir.state.backends.budget import MemoryBudget
from weir.state.backends.heap import HeapTables


def checked(config: StateConfig) -> StateConfig:
    """The configuration itself, if its backend is installed here.

    Raises:
        ConfigError: It is not; the message names the extra that brings it.
    """
    if config.backend is StateBackendKind.ROCKSDB and find_spec("rocksdict") is None:
        raise ConfigError(
            "the state backend rocksdb needs the package rocksdict, which is not installed in the "
            "Python of this process: pip install 'weir-streaming[rocksdb]' on the driver and "
            "wherever slots run"
        )
    return config


def open_tables(
    config: StateConfig, key_groups: KeyGroupRange, budget: MemoryBudget | None = None
) -> StateTables:
    """New tables of one operator subtask.

    Args:
        budget: The memory that it shares with others of its process; None: its own, unlimited.

    Raises:
        ConfigError: The backend is not installed, or its directory cannot be used.
    """
    if checked(config).backend is StateBackendKind.HASHMAP:
        return HeapTables(key_groups, is_incremental=config.is_incremental)
    from weir.state.backends.rocksdb import RocksTables

    return RocksTables(
        key_groups, config.directory, is_incremental=config.is_incremental, budget=budget
    )
