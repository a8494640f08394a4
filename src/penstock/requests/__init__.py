"""Queued requests: HTTP requests that are stored, answered with 202, and delivered in order to their backends.

item        QueuedRequest: a request as it is stored, in gateleen's JSON form
headers     what the headers of a request ask of its queue: expiry, retries, duplicates, time limits
routes      Routes: from a request's address to its backend, and nowhere else
gateway     Gateway: takes requests in
splitting   Splitter: spreads one queue over several
deadlines   the time that an exchange with a backend may take
deliverer   Deliverer: replays requests, one at a time per queue
"""
