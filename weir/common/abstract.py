"""The check for user functions whose class lacks a method, or misspells it.

Python refuses to instantiate such a class if its metaclass is ``ABCMeta``. The function classes
have no metaclass, so that a user's class may have one and derive from them as well; they are
checked when the graph is built instead.
"""

import inspect
from difflib import get_close_matches

from weir.errors import GraphError


def check_complete(function: object) -> None:
    """Refuse an object that does not define the abstract methods of its base class.

    Raises:
        GraphError: Names the class, the method, and a similar name that the class defines.
    """
    kind = type(function)
    own = getattr(function, "__dict__", {})  # A method may be set on the object itself.
    for name in dir(kind):
        if name in own or not _is_abstract(kind, name):
            continue
        base = next(cls for cls in reversed(kind.__mro__) if name in vars(cls))
        if kind is base:
            raise GraphError(
                f"{kind.__name__} is a base class: derive from it and define {name}, and give an "
                "object of that class"
            )
        others = {
            other for cls in kind.__mro__ if not issubclass(base, cls) for other in vars(cls)
        } - set(dir(base))
        similar = get_close_matches(name, sorted(others), 1)
        if not similar:  # The only method of its own is the one that was meant.
            similar = [one for one in others if one.isidentifier() and not one.startswith("_")]
        hint = f"; it has {similar[0]}, which is never called" if len(similar) == 1 else ""
        raise GraphError(
            f"{kind.__name__} does not define {name}, which {base.__name__} leaves to it{hint}"
        )


def _is_abstract(kind: type, name: str) -> bool:
    attribute = inspect.getattr_static(kind, name, None)
    return bool(getattr(attribute, "__isabstractmethod__", False))
