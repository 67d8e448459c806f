"""The settings of RocksDB, and the cache of blocks that all databases of a process share."""

from typing import Any
from weakref import WeakKeyDictionary

import rocksdict

from weir.state.backends.budget import MemoryBudget


def database_options(budget: MemoryBudget) -> Any:
    """The settings of a database, a table or a file."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(block_cache(budget))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(1 << 20)  # Never filled.
    options.set_max_open_files(256)
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
