"""The errors of Weir: their owner, and whether a retry can help.

::

    WeirError
    ├── UserError                  the pipeline or its input; the user can repair it
    │   ├── ConfigError            a setting is out of range or contradicts another
    │   ├── GraphError             the pipeline cannot be built
    │   ├── SchemaError            records do not fit their declared type
    │   ├── KeyTypeError           a key of a type that has no canonical encoding
    │   ├── BadRecordsError        more bad records than the operator's limit allows
    │   ├── SourceChangedError     an input file changed since the checkpoint
    │   └── RestoreError           a checkpoint does not fit the job, or cannot be found
    ├── ExternalError              storage, cluster or network failed; a retry may help
    │   ├── StorageError           checkpoint storage cannot be read or written
    │   ├── CorruptStateError      a stored file is damaged or missing (no retry helps)
    │   ├── SlotError              the cluster gave fewer slots than needed, or other versions
    │   ├── DriverEndedError       the driver left a job that goes on under another one
    │   └── ChannelError           a connection broke, or a peer broke the protocol
    ├── SubtaskError               user code raised inside a subtask; carries the traceback
    ├── JobFailedError             a job ended FAILED; its message is the cause
    └── InternalError
        └── ProtocolError          only a bug can cause it
"""

from typing import ClassVar, Literal

Owner = Literal["user", "external", "internal"]


class WeirError(Exception):
    """Base of all errors Weir raises on purpose."""

    owner: ClassVar[Owner] = "internal"
    retryable: ClassVar[bool] = False  # Whether the same request can succeed later, unchanged.


class UserError(WeirError):
    """The pipeline, its settings or its input need a change."""

    owner = "user"


class ConfigError(UserError):
    """A setting is out of range or contradicts another one."""


class GraphError(UserError):
    """The pipeline cannot be turned into a graph that runs."""


class SchemaError(UserError):
    """Records do not fit the type that was declared for them."""


class KeyTypeError(UserError):
    """A key has a type without a canonical encoding."""


class BadRecordsError(UserError):
    """An operator's function raised on more records than its limit allows."""


class SourceChangedError(UserError):
    """An input has changed since the checkpoint was taken."""


class RestoreError(UserError):
    """A checkpoint cannot be found, or does not fit this job."""


class ExternalError(WeirError):
    """Something outside Weir failed."""

    owner = "external"
    retryable = True


class StorageError(ExternalError):
    """Checkpoint storage could not be read or written."""


class CorruptStateError(ExternalError):
    """A stored file is damaged or missing."""

    retryable = False


class SlotError(ExternalError):
    """The cluster gave fewer slots than the job needs, or slots that do not match the driver."""


class DriverEndedError(ExternalError):
    """The driver has to end although its job is not over; the job's next driver continues it."""


class ChannelError(ExternalError):
    """A connection between slots broke, or its peer broke the protocol."""


class SubtaskError(WeirError):
    """User code raised inside a subtask.

    ``place`` identifies an error that only the program can make, where it may come back: operator,
    record, and type. None: its cause may be outside the program.
    """

    owner = "user"
    retryable = True

    def __init__(self, message: str, *, place: str | None = None) -> None:
        super().__init__(message)
        self.place = place


class JobFailedError(WeirError):
    """A job ended FAILED."""

    owner = "user"


class InternalError(WeirError):
    """A bug in Weir."""


class ProtocolError(InternalError):
    """A message that no correct peer sends in this state."""
