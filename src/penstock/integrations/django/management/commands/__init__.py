"""Commands of ``manage.py``: penstock."""
