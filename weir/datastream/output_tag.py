"""``OutputTag`` under PyFlink's module name."""

from weir.operators.output_tag import OutputTag

__all__ = ["OutputTag"]
