"""``CheckpointingMode`` under PyFlink's module name."""

from typing import TYPE_CHECKING

from weir.common.missing_names import module_attribute
from weir.config import CheckpointingMode

__all__ = ["CheckpointingMode"]

if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
