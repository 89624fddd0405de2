"""`make adversarial`: hostile clients and stores against a real server, beside a healthy client.

Each attack is a row of the printed table: the worst stall of the healthy client, the memory growth
of the server, the refusals, wrong responses, and terminations of the server's process.

An attack is a coroutine and an `Attack` that names it. To add one, write it into a module
`attacks_*.py` of this folder and name it in that module's `ATTACKS`:

    async def unfinished_body(target: Target, random: Random) -> None:
        async with target.connection(target.http_port) as peer:
            await peer.send(b"POST /v2/models/linear/infer HTTP/1.1\\r\\n...")
            target.count(await peer.status())

    ATTACKS = (Attack("an unfinished body", unfinished_body),)

The coroutine is one round. It is repeated, with a new random generator each time, until the end of
the attack; a long round ends when `target.over` is true. The same seed gives the same attacks.
A third of the attacks on the ports of the victim `open` is also run on `processes`.

`target.count` counts the server's responses; `target.wrong` reports a wrong response. The limits of
every attack are in `verdict.py`.
"""
