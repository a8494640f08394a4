"""A put inside your own transaction: the row and the entry are there together, or neither is."""

import sqlite3

import penstock

store = penstock.open_queues("sqlite:///shop.db")
mails = store.queue("mails", str)
mails.put("the first put makes the queue")

db = sqlite3.connect("shop.db")
db.execute("CREATE TABLE customers (name TEXT PRIMARY KEY)")
for name in ("ann", "ann"):  # the second breaks the primary key
    try:
        with db:
            db.execute("INSERT INTO customers VALUES (?)", (name,))
            mails.put(f"welcome, {name}", connection=db)
    except sqlite3.IntegrityError as error:
        print("rolled back:", error)

assert [entry.value for entry in mails.find()] == ["the first put makes the queue", "welcome, ann"]
print(mails.counts().ready, "mails wait")
db.close()
store.close()
