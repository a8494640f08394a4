"""The bus: every subscription gets an entry of its own."""

import msgspec

import penstock


class OrderPlaced(msgspec.Struct):
    number: int


store = penstock.open_queues("sqlite:///shop.db")
bus = penstock.Bus(store)
stock, statistics = bus.subscribe("stock", OrderPlaced), bus.subscribe("statistics", OrderPlaced)


@stock.handler
def reserve(event: OrderPlaced) -> None:
    print("reserved for order", event.number)


@statistics.handler
def count(event: OrderPlaced) -> None:
    print("counted order", event.number)


bus.publish(OrderPlaced(17))
assert penstock.Worker(store).drain() == 2
store.close()
