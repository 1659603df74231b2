"""The settings: an application with one table, and one lock."""

from __future__ import annotations

import os

SECRET_KEY = "there is nothing to protect in a demo"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "demo.django.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["weblock.contrib.django", "demo.django"]
MIDDLEWARE = ["weblock.contrib.django.middleware.LockMiddleware"]

WEBLOCK = {
    "default": {
        "URL": os.environ.get("DEMO_ENGINE", "file://"),
        "NAMESPACE": os.environ.get("DEMO_NAMESPACE", "demo"),
        "TTL": float(os.environ.get("DEMO_TTL", "10")),
    }
}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DEMO_DATABASE", "items.sqlite3"),
        "OPTIONS": {"timeout": 30},
    }
}
