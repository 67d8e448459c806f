"""The models of the app, for Django; they are written in ``controlplane.base``."""

from controlplane.base.models import ClockCorrection

__all__ = ["ClockCorrection"]
