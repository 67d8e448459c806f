"""The models of the app, where Django looks for them; ``controlplane.base`` defines them."""

from controlplane.base.models import ClockCorrection

__all__ = ["ClockCorrection"]
