"""Migrations of the application: 0001_initial has the permission to see the dashboard.

The tables of queues are Penstock's own; ``migrate`` makes them too, and ``penstock schema`` knows more.
"""
