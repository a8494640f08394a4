"""Flask: an extension that opens its queues at their first use and runs handlers in the application's context.

    queues = Queues()                                # in extensions.py
    mails = queues.queue("mails", Mail)

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["PENSTOCK_URL"] = "postgresql://…"
        queues.init_app(app)
        return app

``flask penstock worker`` handles the entries.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from penstock import declared
from penstock.errors import BadInput, NotOpen
from penstock.integrations.around import Around
from penstock.integrations.requirement import check_version, required

flask_cli: Any = required("flask.cli", extra="flask")
check_version("Flask", version("flask"), (3, 0), extra="flask")

if TYPE_CHECKING:
    from flask import Flask

    from penstock.queue.handling.context import Context
    from penstock.queue.handling.middleware import Middleware

URL = "PENSTOCK_URL"
NODE = "PENSTOCK_NODE"


class Queues(declared.Queues):
    """Queues of a Flask application: ``PENSTOCK_URL`` in its configuration says where they are.

    Args:
        app: the application, or later with :meth:`init_app`
        middleware: functions ``(ctx, call_next)`` around every handler
    """

    def __init__(self, app: Flask | None = None, *, middleware: Iterable[Middleware] = ()) -> None:
        """``middleware`` wraps every handler, inside the application's context."""
        super().__init__(middleware=[Around(self._in_context), *middleware])
        self._app: Flask | None = None
        self._opening = threading.Lock()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Bind to this application; the queues of an earlier one are closed.

        Args:
            app: the application
        """
        self.close()
        self._app = app
        app.extensions["penstock"] = self
        app.cli.add_command(_commands(self))

    def open_when_used(self) -> bool:
        """Open what the application's configuration names."""
        with self._opening:
            if self.is_open:
                return False
            app = self._application()
            url = app.config.get(URL)
            if not url:
                raise BadInput(
                    f"the configuration of the Flask application {app.name!r} has no {URL}.",
                    hint=f'Set app.config["{URL}"] = "sqlite:///shop.db".',
                )
            self.open(url, node=app.config.get(NODE))
            return True

    def close(self) -> None:
        """Close the store; the next use opens what the configuration names then."""
        super().close()
        for queue in self._queues:
            queue.unbind(self)

    def _application(self) -> Flask:
        if self._app is None:
            raise NotOpen("these queues belong to no Flask application yet.", hint="Call queues.init_app(app) first.")
        return self._app

    def _in_context(self, ctx: Context[Any]) -> AbstractContextManager[Any]:
        return self._application().app_context()


def _commands(queues: Queues) -> Any:
    group = flask_cli.AppGroup("penstock", help="Queues of this application.")

    @group.command("worker")  # type: ignore[untyped-decorator]
    def worker() -> None:
        """Handle entries until SIGTERM or Ctrl-C."""
        from penstock.queue.worker import Worker

        queues.open_when_used()
        try:
            Worker(queues.store).run()
        finally:
            queues.close()

    return group
