"""Deliveries: notices of alerts on their way to endpoints outside.

::

    post(notice, endpoints)      rows, in the caller's transaction        outbox
        │
    delivery: pending ──► delivered | given up                            machine: every decision
        │      ▲  └─ retried with backoff over a day
        ▼      │
    dispatcher: takes due rows, sends, settles                            dispatcher, leases
        │
    receiver: the notice in the shape that the endpoint reads, pure       receivers/<kind>
    sending: HTTP to a checked address, e-mail                            sending

**Nothing is lost.** The rows are the queue; Redis carries no more than the tick that makes a worker
look, each second. A delivery in flight is leased for some seconds: if its worker dies, the lease
ends and another takes it. So a notice arrives at least once, and an attempt whose outcome was lost
is repeated. Its id (``webhook-id``) stays the same, by which a receiver tells repetitions.

**Order.** The notices of one alert to one endpoint form a line: a later one waits until the one
before it is delivered or given up. Lines do not wait for each other.

**Bad endpoints.** An endpoint that fails rests between its attempts and has one delivery in flight,
others have several; so no endpoint takes all the flights. It is disabled when it answers 410, or
after days without a success; admins are told.

**Secrets.** URLs, signing secrets and keys of an endpoint are encrypted (``sealing``) and shown
once at most.

Alerts are told apart by their ids alone: this package knows no job and no checkpoint.
"""
