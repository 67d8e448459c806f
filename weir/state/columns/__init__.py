"""Tables: keyed state in columns, one row per key, for what is computed over whole slices.

A ``table`` has value columns (``column``) and an index from keys to rows (``key_index``, over
``integer_index`` and ``bytes_index``), and notes which rows changed (``changed_rows``). The arrays
lie in memory or in mapped files (``weir.state.backends.arrays``). ``stored_rows`` converts rows to
those of a snapshot's files and back.
"""
