"""Where checkpoints live.

A *store* keeps files by relative path and offers the one thing a consistent checkpoint needs:
creating a file only if nobody else did (``store``). ``local`` and ``memory`` are its forms,
``layout`` names every path, ``manifest`` is the file whose existence makes a checkpoint exist.

The order of writing carries the guarantee. State files are written and synced first; their sizes
and checksums travel in the acknowledgements; the manifest that lists them is created last, whole or
not at all. Whoever gives a checkpoint up first creates its manifest as a tombstone instead, and the
completion that comes late finds the name taken.
"""
