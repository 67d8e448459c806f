"""The checkpoint storage.

A *store* keeps files by relative path and offers the one operation that a consistent checkpoint
needs: creating a file only if it does not exist yet (``store``). ``local`` and ``memory`` are its
implementations, ``layout`` names every path, ``manifest`` is the file whose existence makes a
checkpoint exist, ``catalog`` resolves URIs. ``local_copies`` are on a slot's own disk, for restarts
there; nothing depends on them.

The order of writing carries the guarantee. State files are written and synced first; their sizes
and checksums travel in the acknowledgements; the manifest that lists them is created last, whole or
not at all. A driver that gives a checkpoint up creates a tombstone under the manifest's name first,
so that a late completion fails because the name is taken.
"""
