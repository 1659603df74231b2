"""An application without migrations: its tables are made as its models are."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The shop."""

    name = "tests.contrib.django.project.shop"
    path = __file__.rpartition("/")[0]
