"""A handler: the user's function, what it may ask while it runs, and what its outcome means.

handler    Handler: the function with its policy
context    Context: what a handler may ask of Penstock
attempt    Attempt: one start of a handler for one entry
register   the type of @queue.handler(...)
middleware functions around a handler
outcomes   what a returned value or an exception means for the entry
"""
