"""The settings of the project; SHOP_FOLDER says where its database is, SHOP_POSTGRES names a second one."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
SECRET_KEY = os.environ.get("SHOP_SECRET", "only for the example")
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_shop.urls"
USE_TZ = True
TIME_ZONE = "America/Chicago"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    *(["django_tasks"] if django.VERSION < (6, 0) else []),
    "penstock.integrations.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
BACKEND = "penstock.integrations.django.backend.TaskBackend"
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": BACKEND,
        "QUEUES": [],
        "OPTIONS": {"database": "default", "retry": {"attempts": 2, "immediate": 1}},
    },
    "elsewhere": {"BACKEND": BACKEND, "OPTIONS": {"url": "memory://shop"}},
}
PENSTOCK_DASHBOARD_URL = "https://ops.shop.example/"

if "SHOP_POSTGRES" in os.environ:
    _parts = urlsplit(os.environ["SHOP_POSTGRES"])
    DATABASES["postgres"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.path.strip("/"),
        "USER": _parts.username,
        "HOST": _parts.hostname,
        "PORT": _parts.port,
        "CONN_MAX_AGE": None,
    }
    TASKS["postgres"] = {
        "BACKEND": BACKEND,
        "QUEUES": [],
        "OPTIONS": {"database": "postgres", "durability": "fast"},
    }
