"""Two workers race for many requests: RACE_REQUESTS, or 50."""

import os

from remote_ends import finish, race, test


REQUESTS = int(os.environ.get("RACE_REQUESTS", "50"))


@test(f"two workers race for {REQUESTS} requests: each runs exactly once")
def _():
    race(REQUESTS)


finish()
