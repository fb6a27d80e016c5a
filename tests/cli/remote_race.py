"""Two workers race for 200 requests."""

from remote_ends import finish, race, test


@test("two workers race for 200 requests: each runs exactly once")
def _():
    race(200)


finish()
