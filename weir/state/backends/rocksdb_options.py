"""The settings of RocksDB, and the cache of blocks that all databases of a process share."""

import resource
from typing import Any, Final
from weakref import WeakKeyDictionary

import rocksdict

from weir.state.backends.budget import MemoryBudget

OPEN_FILES_MIN: Final = 256
OPEN_FILES_MAX: Final = 1_024
DATABASES: Final = 16  # Of a process, which share what it may have open.

METADATA_BLOCK_BYTES: Final = 4 << 10


def open_files_max(limit: int) -> int:
    """The files that a database keeps open, of a process that may have ``limit`` open.

    A read of a file that is not open takes some 0.1 ms. Keys that come in their order are never
    merged, so a database of them has a file for each increment.
    """
    if limit == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, limit // DATABASES))


def database_options(budget: MemoryBudget) -> Any:
    """The settings of a database, a table or a file."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(block_cache(budget))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    # In parts: the filter of a million keys has 1.25 MB, and a shard of the cache half a megabyte.
    blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_metadata_block_size(METADATA_BLOCK_BYTES)
    blocks.set_pin_top_level_index_and_filter(True)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(1 << 20)  # Never filled.
    options.set_max_open_files(open_files_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    options.set_compaction_readahead_size(256 << 10)  # For each file of a compaction.
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options


_caches: WeakKeyDictionary[MemoryBudget, Any] = WeakKeyDictionary()


def block_cache(budget: MemoryBudget) -> Any:
    """The cache of blocks of all databases with this budget."""
    if budget not in _caches:
        _caches[budget] = rocksdict.Cache(budget.cache_bytes)
    return _caches[budget]


def move_options() -> Any:
    """The settings by which a database takes a file in, which moves there."""
    options = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    return options
