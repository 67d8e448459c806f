"""``NumberSequenceSource`` under PyFlink's module name."""

from weir.operators.sources.generated import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
