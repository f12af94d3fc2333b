"""A task that waits for ever, and one that is done."""

import asyncio

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


async def job(event):
    scratch = POOL.allocate(1300)  # leak: 1300
    await event.wait()
    return scratch.size


async def main():
    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    tasks = [asyncio.create_task(job(event)) for event in (never, now)]
    await tasks[1]
    found = check_memory_leaks()
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


LEAKS = asyncio.run(main())
# held by: local 'scratch' of suspended coroutine job
