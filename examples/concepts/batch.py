"""A batch: pages are printed in any order, and the book is bound when all are done."""

import penstock

store = penstock.open_queues("sqlite:///shop.db")
pages, books = store.queue("pages", int), store.queue("books", str)


@pages.handler
def print_page(number: int) -> None:
    print("page", number)


@books.handler
def bind(title: str, ctx: penstock.Context) -> None:
    print(f"{title}: bound, {ctx.before.tally['done']} pages")


with store.batch(then=(books, "Moby-Dick")) as batch:
    for number in range(1, 4):
        batch.put(pages, number)

penstock.Worker(store).drain()
assert books.counts().live == 0
store.close()
