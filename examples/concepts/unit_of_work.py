"""A unit of work: take some entries and put others, all of it or nothing."""

import penstock

store = penstock.open_queues("sqlite:///shop.db")
orders = store.queue("orders", str)
invoices = store.queue("invoices", str)
orders.put_many(["order 1", "order 2"])

try:
    with store.unit() as unit:
        for entry in unit.take(orders, limit=10):
            unit.put(invoices, f"invoice for {entry.value}")
        raise RuntimeError("the power is gone")
except RuntimeError as error:
    print(f"{error}: {orders.counts().ready} orders, {invoices.counts().ready} invoices")

with store.unit() as unit:
    for entry in unit.take(orders, limit=10):
        unit.put(invoices, f"invoice for {entry.value}")
    unit.commit()
print(f"committed: {orders.counts().ready} orders, {invoices.counts().ready} invoices")
assert (orders.counts().live, invoices.counts().ready) == (0, 2)
store.close()
