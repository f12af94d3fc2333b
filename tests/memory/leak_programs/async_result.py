"""The result of a task that is kept."""

import asyncio

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


async def job():
    return POOL.allocate(1400)  # leak: 1400


async def main():
    task = asyncio.create_task(job())
    await task
    return task


TASKS = [asyncio.run(main())]
# held by: ← item 0 of list ← global 'TASKS' (list) of module program_async_result

LEAKS = check_memory_leaks()
