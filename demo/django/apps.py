"""The project is its only application."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """A shop that has items."""

    name = "demo.django"
    label = "shop"
