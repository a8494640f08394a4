"""The log stores: ``memory``, ``files/`` and ``kafka``; ``embedded`` is what the first two share."""
