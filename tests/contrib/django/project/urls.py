"""The URLs of the tests' project; a test brings those of its own views."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
