"""The layouts that the seed systems document, made on a server and filled from a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KILLBILL_TABLES = ("bus_events", "bus_events_history", "notifications", "notifications_history")
_SHARED = """
  class_name varchar(256) NOT NULL, event_json varchar(2048) NOT NULL, user_token varchar(36),
  created_date {time} NOT NULL, creating_owner varchar(50) NOT NULL, processing_owner varchar(50),
  processing_available_date {time}, processing_state varchar(14) DEFAULT 'AVAILABLE', error_count int DEFAULT 0,
  search_key1 bigint, search_key2 bigint
"""
_DATED = ", queue_name varchar(64) NOT NULL, effective_date {time} NOT NULL, future_user_token varchar(36)"
# What Kill Bill has PostgreSQL do as MySQL does.
_SHIMS = """
CREATE DOMAIN datetime AS timestamp without time zone;
CREATE FUNCTION last_insert_id() RETURNS bigint AS 'SELECT lastval()' LANGUAGE sql VOLATILE;
"""


def killbill_ddl(dialect: str) -> str:
    """The statements that make the four tables."""
    is_postgres = dialect == "postgresql"
    key = "bigserial PRIMARY KEY" if is_postgres else "bigint unsigned AUTO_INCREMENT PRIMARY KEY"
    end = "" if is_postgres else " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    tables = [
        f"CREATE TABLE {table} (record_id {key}, "
        f"{(_SHARED + (_DATED if table.startswith('notifications') else '')).format(time='datetime')}){end};"
        for table in KILLBILL_TABLES
    ]
    return (_SHIMS if is_postgres else "") + "".join(tables)


def recording(name: str) -> Any:
    """What a Java original wrote."""
    return json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text(encoding="utf-8"))
