"""The settings of a Django project on real servers."""

from __future__ import annotations

import os

SECRET_KEY = "a fixed secret, for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.e2e.django_views"
WSGI_APPLICATION = "tests.e2e.django_apps.wsgi"
INSTALLED_APPS = ["weblock.contrib.django", "tests.contrib.django.project.shop"]
MIDDLEWARE = ["weblock.contrib.django.middleware.LockMiddleware"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["SITE_DATABASE"],
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": os.environ["SITE_DATABASE_PORT"],
        "ATOMIC_REQUESTS": True,
    }
}
SIGNS = os.environ["SITE_SIGNS"]
"""A folder for signs between views and tests."""

WEBLOCK = {"default": {"URL": os.environ["SITE_LOCKS"], "WAIT": 100}}
