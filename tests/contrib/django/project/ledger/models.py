"""Accounts whose rows know the fence of their last writer."""

from django.db import models

from weblock.contrib.django.fencing import FencedModel


class Owner(models.Model):
    """Who has accounts."""

    name = models.CharField(max_length=100)


class Account(FencedModel):
    """An account, which only the newest holder of its lock may write."""

    owner = models.ForeignKey(Owner, models.CASCADE)
    balance = models.IntegerField(default=0)


class Savings(Account):
    """An account with a table of its own beside the other's."""

    rate = models.IntegerField(default=0)


class Entry(models.Model):
    """What is added to an account."""

    account = models.ForeignKey(Account, models.CASCADE)
