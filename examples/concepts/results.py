"""Results and progress: what a handler returned, for whoever waits for it."""

import threading

import penstock

store = penstock.open_queues("sqlite:///shop.db")
sums = store.queue("sums", list[int])


@sums.handler(keep_result="1h")
def add(numbers: list[int], ctx: penstock.Context) -> int:
    total = 0
    for done, number in enumerate(numbers, 1):
        total += number
        ctx.progress(done, len(numbers), f"so far {total}")
    return total


put = sums.put([1, 2, 3, 4])
worker = threading.Thread(target=penstock.Worker(store).drain)
worker.start()
print("the sum is", sums.result(put.id, timeout="30s").value)
worker.join()
store.close()
