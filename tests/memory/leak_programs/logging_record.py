"""A handler that keeps its records, and a record that keeps its arguments."""

import logging
import logging.handlers

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Block:
    def __init__(self, block):
        self.block = block


def work(log):
    log.warning("made %s", Block(POOL.allocate(1900)))  # leak: 1900


handler = logging.handlers.MemoryHandler(capacity=100, flushLevel=logging.CRITICAL)
logger = logging.getLogger(__name__)
logger.addHandler(handler)
logger.propagate = False
work(logger)
LEAKS = check_memory_leaks()
logger.removeHandler(handler)
handler.close()
# held by: attribute 'block' of Block at
