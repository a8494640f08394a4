"""The one error tree: every error names the thing, the cause and the next step."""

from __future__ import annotations


class PenstockError(Exception):
    """Something in Penstock went wrong."""

    def __init__(self, message: str = "", *, hint: str = "", partition: str = "", offset: int | None = None) -> None:
        """Build the text from what happened and, when known, what to do next; ``partition``, ``offset``: in which log.

        The message names them too.
        """
        self.message = message or (type(self).__doc__ or "")
        self.hint = hint
        self.partition = partition
        self.offset = offset
        super().__init__(f"{self.message} {hint}" if hint else self.message)


# --- the caller gave something that cannot be used -----------------------------------------------


class BadInput(PenstockError, ValueError):
    """An argument cannot be used."""


class WrongType(BadInput, TypeError):
    """A payload is not of the type its queue or log was opened with."""


class PayloadTooLarge(BadInput):
    """A payload is larger than the store accepts."""


class UnitTooLarge(BadInput):
    """A unit of work is larger than the store can commit in one step."""


class Undecodable(BadInput):
    """Stored bytes cannot be read as the expected type."""


# --- a store cannot be opened or used ------------------------------------------------------------


class PayloadTooNew(Undecodable):
    """Stored bytes were written by newer code, in a version of their type that this program does not know."""


class CannotOpen(PenstockError):
    """A store cannot be opened."""


class UnknownScheme(CannotOpen):
    """The URL's scheme names no known store."""


class MissingExtra(CannotOpen, ImportError):
    """The driver for this store is not installed."""


class SchemaMismatch(CannotOpen):
    """The store's schema and this version of Penstock do not fit together."""


class UnexpectedLayout(CannotOpen):
    """Tables, keys or znodes of another system are not what its documentation says."""


class NothingToAdopt(PenstockError, LookupError):
    """Another system holds nothing that could be taken over."""


class NotOpen(PenstockError):
    """Queues are declared, but not open yet."""


class StoreUnavailable(PenstockError):
    """The store cannot be reached, or refused the call: nothing of it happened."""


class StoreForbidden(StoreUnavailable):
    """The server does not let this user do that; nothing of it happened."""


class StoreReadOnly(StoreUnavailable):
    """The store accepts no writes."""


class StoreFull(PenstockError):
    """The store has no room; nothing of the call was written."""


class StoreCorrupt(PenstockError):
    """The store's data is damaged; nothing was changed."""


class Unsupported(PenstockError):
    """This store does not offer what was asked; its capability flags say so."""


class NotAllowed(PenstockError, PermissionError):
    """The service refuses the API key, or needs one."""


# --- the state of an entry or queue forbids it ---------------------------------------------------


class Conflict(PenstockError):
    """What was asked contradicts what is already there."""


class UniqueHeld(Conflict):
    """Another live entry of this queue holds the same unique id."""


class NotHeld(Conflict):
    """More was added to a batch, or to what an entry waits for, after it was released, cancelled or expired."""


class EntryNotFound(PenstockError, LookupError):
    """No such entry."""


class EntryLeased(Conflict):
    """The entry is being worked on."""


class LeaseLost(PenstockError):
    """The lease ran out or was taken away; nothing was changed."""


class OutcomeUnknown(PenstockError):
    """The call may have happened: its reply was lost. Repeat it with the same ids, or look before deciding."""


class HandlerTimeout(PenstockError, TimeoutError):
    """A handler took longer than its time limit; the attempt has failed."""


class HandlerDied(PenstockError):
    """The process that ran a handler ended before the handler did; the attempt has failed."""


class CircuitNotFound(PenstockError, LookupError):
    """No such circuit."""


# --- the state of a log or group forbids it ------------------------------------------------------


class LogNotFound(PenstockError, LookupError):
    """No such log."""


class PartitionNotFound(BadInput, LookupError):
    """The log has no such partition."""


class PartitionTaken(Conflict):
    """Another open tailer of the group reads this partition."""


class AppenderTaken(Conflict):
    """Another appender holds the log for itself, or holds it at all when exclusive use was asked."""


class Closed(PenstockError):
    """The appender, tailer or transaction was closed."""


class OffsetOutOfRange(PenstockError, LookupError):
    """The offset is not in the log: retention removed it, or it was never there."""


class Fenced(PenstockError):
    """Another one took over while this one was silent; nothing was changed."""


class ProducerFenced(Fenced):
    """Another appender of the same producer has begun."""


class RecordCorrupt(StoreCorrupt):
    """Records of a log are damaged; nothing was changed and nothing was cut."""


class ComputationFailed(PenstockError):
    """A computation has stopped: no further attempt would help. Everything it has committed stays."""


# --- warnings: nothing failed, and yet it is hardly what was meant --------------------------------


class PenstockWarning(UserWarning):
    """Something was done that is hardly what was meant."""


class ScheduleChanged(PenstockWarning):
    """A schedule is defined differently than it is stored, under the same version; what is stored holds."""


class UnitNotCommitted(PenstockWarning):
    """A unit of work was left without a commit, so it was rolled back."""
