"""From the settings of a backend or a database to the URL of a store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from penstock.errors import BadInput

OPTIONS = ("database", "url", "space", "durability", "prefix", "retry", "keep_results", "concurrency", "timeout")
IN_URL = ("space", "durability")


def check_settings(alias: str, options: dict[str, Any]) -> None:
    """Refuse options that a backend does not have, and those that contradict each other."""
    for name in options:
        if name not in OPTIONS:
            raise BadInput(
                f"TASKS[{alias!r}] has the option {name!r}, which is unknown.", hint=f"Known: {', '.join(OPTIONS)}."
            )
    for name in IN_URL:
        if "url" in options and name in options:
            raise BadInput(f"TASKS[{alias!r}] has a url and {name}.", hint=f"Write it into the url: ?{name}=….")


def is_in_memory(settings: dict[str, Any]) -> bool:
    """Whether a database is SQLite without a file, as Django's test runner makes it."""
    name = str(settings["NAME"])
    return settings["ENGINE"].endswith(".sqlite3") and (":memory:" in name or "mode=memory" in name)


def database_url(alias: str, settings: dict[str, Any], options: dict[str, Any]) -> str:
    """The URL of the store in one of Django's databases."""
    engine, name = settings["ENGINE"], str(settings["NAME"])
    query: dict[str, str] = {name: value for name, value in options.items() if name in IN_URL}
    if engine.endswith(".sqlite3"):
        if is_in_memory(settings):
            raise BadInput(
                f"DATABASES[{alias!r}] is in memory, where a second connection sees nothing of it.",
                hint='Give its TEST a file: {"TEST": {"NAME": BASE_DIR / "test.db"}}; or use OPTIONS {"url": "memory://"}.',
            )
        return _with_query(f"sqlite:///{quote(name)}", query)
    if engine.endswith((".postgresql", ".postgis")):
        return _with_query(_server_url("postgresql", settings, name), {**_connection_options(settings), **query})
    raise BadInput(
        f"DATABASES[{alias!r}] has the engine {engine}, whose transactions Penstock cannot join.",
        hint='Use SQLite or PostgreSQL, or OPTIONS {"url": ...}: tasks are then put after the commit.',
    )


def _server_url(scheme: str, settings: dict[str, Any], name: str) -> str:
    user, password = quote(settings.get("USER", ""), safe=""), quote(settings.get("PASSWORD", ""), safe="")
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = settings.get("HOST", ""), settings.get("PORT", "")
    return f"{scheme}://{who}{quote(host, safe='')}{f':{port}' if port else ''}/{quote(name, safe='')}"


def _connection_options(settings: dict[str, Any]) -> dict[str, str]:
    """What libpq understands of the database's OPTIONS, such as sslmode and search_path."""
    return {name: value for name, value in settings.get("OPTIONS", {}).items() if isinstance(value, str)}


def _with_query(url: str, query: dict[str, str]) -> str:
    return f"{url}?{urlencode(query, quote_via=quote)}" if query else url
