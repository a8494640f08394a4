"""A queue: typed entries, a handler, a delay, a unique id."""

import msgspec

import penstock


class Mail(msgspec.Struct):
    to: str


store = penstock.open_queues("sqlite:///shop.db")
mails = store.queue("mails", Mail)


@mails.handler
def send(mail: Mail) -> None:
    print("mail to", mail.to)


mails.put(Mail("ann@example.org"), unique="welcome-ann")
assert not mails.put(Mail("ann@example.org"), unique="welcome-ann").created  # it waits already
mails.put(Mail("ben@example.org"), delay="45m")

penstock.Worker(store).drain()  # handles what is due; run() goes on until SIGTERM
print(mails.counts().delayed, "mail for later")
store.close()
