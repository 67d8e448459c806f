"""The classes behind ``Types``: one module for their contract, one for each kind.

``Row`` is here too, as in PyFlink.
"""

from weir.common.row import Row

__all__ = ["Row"]
