"""Queued requests: HTTP requests that are stored, answered with 202, and delivered in order to their backends.

item        QueuedRequest: a request as it is stored, in gateleen's JSON form
headers     what the headers of a request ask of its queue: expiry, retries, duplicates, time limits
routes      Routes: from a request's address to its backend, and nowhere else
intake      Gateway: takes requests in
queuing     Queuing: redisques' operations on these queues
splitting   Splitter: spreads one queue over several
addresses   where a backend's name may lead
patterns    patterns whose matching takes bounded work
deadlines   the HTTP client: the time that an exchange may take, and checked addresses only
batches     Batches: consecutive requests of one queue, delivered as one
responses   Answers: how often a request was given an answer that its retry headers are about
slots       Slots: how many requests of one route are under way
delivery    Deliverer: replays requests, in order per queue
"""
