"""What the tests count: the items of a shop."""

from django.db import models


class Item(models.Model):
    """One item."""

    name = models.CharField(max_length=100, default="")
