"""The URL, and the lock. ``DEMO_LOCK=off`` takes the lock away, and nothing else."""

from __future__ import annotations

import os

from django.urls import path

from demo.django.views import create_item
from weblock.contrib.django import lock

LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

urlpatterns = [
    path("items", lock("create_item")(create_item) if LOCKED else create_item),
]
