"""A Flask application: queues declared as an extension, handlers in the application's context.

flask --app examples.integrations.flask_shop run
flask --app examples.integrations.flask_shop penstock worker
"""

from __future__ import annotations

import os

from flask import Flask, current_app

from penstock.integrations.flask import Queues

queues = Queues()
mails = queues.queue("mails", str)


@mails.handler
def send(mail: str) -> None:
    """Send a mail with the application's settings."""
    current_app.logger.info("%s from %s", mail, current_app.config["SENDER"])


def create_app(url: str | None = None) -> Flask:
    """Make the application."""
    app = Flask(__name__)
    app.config["PENSTOCK_URL"] = url or os.environ.get("SHOP_URL", "sqlite:///shop.db")
    app.config["SENDER"] = "shop@example.org"
    queues.init_app(app)

    @app.post("/orders/<customer>")
    def order(customer: str) -> dict[str, str]:
        """Take an order."""
        return {"id": mails.put(f"thank you, {customer}").id}

    return app
