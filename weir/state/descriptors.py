"""State descriptors, by which a function declares keyed state: name, type, combination.

Names and arguments are PyFlink's.
"""

from collections.abc import Callable
from typing import Any

from weir.common.abstract import check_complete
from weir.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from weir.errors import ConfigError
from weir.state.ttl import StateTtlConfig


class StateDescriptor:
    """The declaration of a keyed state; ``type_info`` is the type of its value per key."""

    kind: str

    def __init__(self, name: str, type_info: TypeInformation) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a state needs a name, not {name!r}")
        if not isinstance(type_info, TypeInformation):
            raise ConfigError(
                f"state {name!r} needs a type such as Types.LONG(), not {type_info!r}"
            )
        self.name = name
        self.type_info = type_info
        self.ttl_config: StateTtlConfig | None = None  # None: it does not expire.

    def get_name(self) -> str:
        """The name of the state, unique within its operator."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let each value, list element or map entry expire some time after its last touch.

        Raises:
            ConfigError: ``ttl_config`` is no ``StateTtlConfig``.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise ConfigError(
                f"state {self.name!r}: a time-to-live is a StateTtlConfig, such as "
                f"StateTtlConfig.new_builder(Duration.of_hours(1)).build(), not {ttl_config!r}"
            )
        self.ttl_config = ttl_config if ttl_config.is_enabled() else None


class ValueStateDescriptor(StateDescriptor):
    """One value per key."""

    kind = "value"

    def __init__(self, name: str, value_type_info: TypeInformation) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """A list per key."""

    kind = "list"

    def __init__(self, name: str, elem_type_info: TypeInformation) -> None:
        super().__init__(name, elem_type_info)
        self.type_info = ListTypeInfo(elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """A dictionary per key."""

    kind = "map"

    def __init__(
        self, name: str, key_type_info: TypeInformation, value_type_info: TypeInformation
    ) -> None:
        super().__init__(name, value_type_info)
        self.type_info = MapTypeInfo(key_type_info, value_type_info)


class ReducingStateDescriptor(StateDescriptor):
    """One value per key, into which every added value is reduced."""

    kind = "reducing"

    def __init__(self, name: str, reduce_function: Any, type_info: TypeInformation) -> None:
        super().__init__(name, type_info)
        check_complete(reduce_function)
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> Any:
        """A ``ReduceFunction``, or a callable of two values."""
        return self.reduce_function

    @property
    def reduce(self) -> Callable[[Any, Any], Any]:
        """The reduction as a plain callable."""
        function: Callable[[Any, Any], Any]
        function = getattr(self.reduce_function, "reduce", self.reduce_function)
        return function


class AggregatingStateDescriptor(StateDescriptor):
    """An accumulator per key, into which every added value is folded."""

    kind = "aggregating"

    def __init__(self, name: str, agg_function: Any, state_type_info: TypeInformation) -> None:
        super().__init__(name, state_type_info)
        check_complete(agg_function)
        self.agg_function = agg_function

    def get_agg_function(self) -> Any:
        """The ``AggregateFunction``."""
        return self.agg_function
