"""What speaks to a database: one driver per store, cut along the six verbs put, claim, settle, reap, read, transfer.

``memory`` keeps everything in this process; ``version`` is what every driver says of what a newer Penstock wrote.
"""
