"""Adapters: one folder for each framework."""
