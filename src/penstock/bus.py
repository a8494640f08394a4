"""Bus: publish an event, and every subscription that wants its type gets an entry of its own.

A subscription is durable and has its own queue, ``bus.<name>``: it is retried, locked, delayed and replayed like any
queue, and a failure there re-runs no other subscription. A subscription to a class also receives its subclasses: the
publisher stores the names of the event's class and of all its base classes, and a subscription matches any of them.
"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import msgspec

from penstock.codec import codec_for, type_name
from penstock.errors import BadInput
from penstock.names import check_name
from penstock.queue.options import PutOptions, QueueOptions, check_options
from penstock.queue.protocol import NewEvent, PutResult, Step, Subscription
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.tracing import begin

T = TypeVar("T")

QUEUE_PREFIX = "bus."
_NOT_EVENT_TYPES = frozenset({object, msgspec.Struct})


class Bus:
    """Publish and subscribe in one space of a queue store.

    Args:
        store: where entries and subscriptions are kept
    """

    def __init__(self, store: QueueStore) -> None:
        """Cheap to make: all state is in the store."""
        self.store = store

    def subscribe(self, name: str, *types: type[T], **options: Unpack[QueueOptions]) -> Queue[T]:
        """Make or change a durable subscription. It gets every event that is published after this returns.

        Events of the given types and their subclasses are decoded as the first type; with several types, subscribe to a
        common base or read plain JSON (``dict``).

        Args:
            name: of the subscription, and of its queue
            *types: what it wants; everything by default
            **options: those of a queue

        Returns:
            its queue: give it a handler
        """
        if not types:
            raise BadInput(f"subscription {name!r} names no event type.", hint="Name the classes it wants.")
        for wanted in types:
            if not isinstance(wanted, type) or wanted in (int, float, bool, type(None)):
                raise BadInput(
                    f"{wanted!r} is not an event type.", hint="Subscribe to a class: Struct, dataclass, model."
                )
        queue_name = QUEUE_PREFIX + check_name(name, kind="subscription")
        payload: Any = types[0] if len(types) == 1 else dict
        queue: Queue[T] = Queue(self.store, queue_name, payload, **options)
        self.store.driver.subscribe(
            Subscription(name, queue_name, tuple(sorted({type_name(event_type) for event_type in types})))
        )
        return queue

    def unsubscribe(self, name: str) -> bool:
        """End a subscription. The entries that it already has stay in its queue.

        Args:
            name: of the subscription

        Returns:
            whether there was one
        """
        return self.store.driver.unsubscribe(name)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        return self.store.driver.subscriptions()

    def publish(self, event: Any, *, connection: Any = None, **options: Unpack[PutOptions]) -> list[PutResult]:
        """Publish an event to all subscriptions. Without any, the signal ``unwanted`` is emitted.

        The subscriptions are read in the same atomic step as the entries are written.

        Args:
            event: what to publish
            **options: those of :meth:`penstock.Queue.put` that can hold for the entry of every subscription

        Returns:
            what was put for each subscription
        """
        driver = self.store.driver
        span = begin(driver.tracing, "publish", type_name(type(event)), options.get("headers"))
        try:
            new_event = self.new(event, **options)
            done = driver.commit(Step(events=(new_event,)), connection=connection)
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        if span is not None:
            span.message(new_event.template.id)
            span.end()
        return list(done.published[0])

    def new(self, event: Any, **options: Unpack[PutOptions]) -> NewEvent:
        """Check and encode an event without publishing it. Units and handler contexts collect such events."""
        check_options(options, "publish")
        template: Queue[Any] = Queue(self.store, "bus", codec=codec_for(type(event)))
        types = tuple(
            type_name(class_)
            for class_ in type(event).__mro__
            if class_ not in _NOT_EVENT_TYPES and class_.__module__ != "typing"
        )
        return NewEvent(types, template.new(event, **options))
