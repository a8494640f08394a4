"""Penstock inside other people's frameworks; nothing here is imported unless a program asks for it.

django/        Django: a Tasks backend, puts inside atomic, a worker command, a link in the admin
fastapi        FastAPI and Starlette: lifespan, dependency, the REST API and the dashboard under a prefix
flask          Flask: an extension, handlers in the application's context, ``flask penstock worker``
sqlalchemy     an outbox in the program's own database, for queues that are kept elsewhere
sentry         failures of handlers, with their entry, as events of Sentry
structlog      the entry of a handler in every line that it logs
pytest_plugin  fixtures for the tests of programs, found by pytest itself
around         the common part of integrations with a middleware
requirement    whether a framework is there, and new enough
"""
