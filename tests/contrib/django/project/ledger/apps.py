"""An application without migrations: its tables are made as its models are."""

from django.apps import AppConfig


class LedgerConfig(AppConfig):
    """The ledger."""

    name = "tests.contrib.django.project.ledger"
    path = __file__.rpartition("/")[0]
