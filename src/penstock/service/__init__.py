"""The service: Penstock over HTTP, for other languages and for people (``penstock serve``).

============  ====================================================================================
module        what it is for
============  ====================================================================================
settings      what a service serves and how strict it is
keys          API keys: scopes, prefixes, and only hashes on disk
access        who is asking, and what they may do
ids           entry ids of keys with a prefix, given and stored
problems      errors as problem+json, and their part of the OpenAPI
limits        size, time and headers of every request and answer
routing       the key before the body, and the body strictly as JSON
paging        pages that are bounded in bytes
protocol      HTTP/1.1 with a deadline for every state of a connection
schemas       what is sent and answered, as types
queues        queues, their entries, history, dead letters and locks
leases        claims and outcomes, for workers of other languages
schedules     schedules
changes       who changed what by hand
workers       workers that live, and what all of them did minute by minute
scale         how much work there is, for autoscalers
logs          logs, records, groups and their offsets
topologies    pictures and lag of topologies
circuits      circuits of the breaker and its configuration
gateleen_circuits  gateleen's circuit API, exactly
redisques_api redisques' HTTP interface
gateway       queued requests
signals       a stream of what happens, as server-sent events
recording     who changed what through the service, for the page of changes
dashboard/    pages for people, at /
health        whether it is live and ready, and its metrics
gauges        what the stores hold at the moment of a scrape
app           the whole service as one ASGI application
prefix        the same below a prefix of another application
running       the server process
============  ====================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtra
from penstock.importing import names_on_demand

if TYPE_CHECKING:
    from penstock.service.app import create_app
    from penstock.service.keys import ApiKey, Keys, new_key
    from penstock.service.running import serve
    from penstock.service.settings import ServiceSettings

__all__ = ["ApiKey", "Keys", "ServiceSettings", "create_app", "new_key", "serve"]

# Keys are made on machines that serve nothing, and have no framework.
_get, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.service.app": "create_app",
        "penstock.service.keys": "ApiKey Keys new_key",
        "penstock.service.running": "serve",
        "penstock.service.settings": "ServiceSettings",
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as cause:
        if cause.name is None or cause.name.startswith("penstock"):
            raise
        raise MissingExtra(
            f"the service needs {cause.name}, which is not installed.", hint='Run: pip install "penstock[service]"'
        ) from cause
