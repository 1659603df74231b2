"""Which of redis-py's cases have another outcome here, and why."""

from __future__ import annotations

DIFFERENT = {
    "test_lock": "a lock without a timeout lasts while its process does",
    "test_lock_token": "the owner is a secret",
    "test_lock_token_thread_local_false": "the owner is a secret",
    "test_blocking_timeout": "who would wait for itself is told at once",
    "test_context_manager_blocking_timeout": "who would wait for itself is told at once",
    "test_reacquire_lock": "no command of an application changes a lock",
}
