"""The worker: ``python -m demo.handing_over.worker`` takes jobs, and their locks, until it is ended."""

from __future__ import annotations

import os
import time

from demo.handing_over import jobs
from weblock import LeaseLost, Locks


def main() -> None:
    """Make one report after the other."""
    with Locks.from_url(
        os.environ.get("DEMO_ENGINE", "file://"),
        namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
        ttl=float(os.environ.get("DEMO_TTL", "10")),
    ) as locks:
        while True:
            if job := jobs.next_job():
                make(job, locks)
            else:
                time.sleep(0.05)


def make(job: jobs.Job, locks: Locks) -> None:
    """Make one report, if nobody else has taken its lock over."""
    try:
        with locks.take_over(job.token) as lease:
            fence = lease.fence or 0
            jobs.note(job, "running", worker=os.getpid(), fence=fence)
            time.sleep(job.work)  # Some work.
            lease.check()
            jobs.note(job, "done", worker=os.getpid(), fence=fence)
    except LeaseLost:  # It came too late, or twice.
        jobs.note(job, "lost", worker=os.getpid(), fence=0)


if __name__ == "__main__":
    main()
