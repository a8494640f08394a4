"""An outbox: orders and their mails are committed in one SQLite file, and the mails relayed to queues elsewhere.

python examples/integrations/outbox.py FOLDER [URL of the other store]
"""

from __future__ import annotations

import sys
from pathlib import Path

import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import penstock
from penstock import Worker
from penstock.integrations.sqlalchemy import Outbox


class Table(DeclarativeBase):
    """The tables of the shop."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


def main(folder: Path, far: str = "memory://") -> None:
    """Take an order that is committed and one that is not, then relay."""
    file = folder / "shop.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    Table.metadata.create_all(engine)
    with penstock.open_queues(f"sqlite:///{file}") as near, penstock.open_queues(far) as elsewhere:
        outbox, mails = Outbox(near, into=elsewhere), elsewhere.queue("mails", str)
        for customer, pays in (("ann", True), ("ben", False)):
            with Session(engine) as session:
                session.add(Order(customer=customer))
                outbox.put(mails, f"thank you, {customer}", connection=session)
                if pays:
                    session.commit()
        print("before the relay:", [entry.value for entry in mails.find()])
        Worker(near).drain()
        print("after the relay:", [entry.value for entry in mails.find()])
    engine.dispose()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
