"""`make adversarial`: hostile clients and stores against a real server, beside a healthy client.

Each attack is a row of the table that is printed: the worst stall that the healthy client saw, the
memory that the server took, the refusals, wrong answers, and ends of the server's process.

An attack is a coroutine and an `Attack` that names it. To add one, write it into a module
`attacks_*.py` of this folder and name it in that module's `ATTACKS`:

    async def unfinished_body(target: Target, random: Random) -> None:
        async with target.connection(target.http_port) as peer:
            await peer.send(b"POST /v2/models/linear/infer HTTP/1.1\\r\\n...")
            target.count(await peer.status())

    ATTACKS = (Attack("an unfinished body", unfinished_body),)

The coroutine is one round. It is repeated, with a generator of its own each time, until the time of
the attack is over; a round that lasts ends when `target.over` is true. The same seed gives the same
attacks. What the server answers is counted by `target.count`; an answer that is wrong is told by
`target.wrong`. Limits that every attack is held against are in `verdict.py`.

Import `protos` inside a coroutine only: a process of tests may hold other stubs of its messages.
"""
