"""Device memory that is only counted."""

from __future__ import annotations


class Memory:
    """Device memory that can run out."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room, self.live, self.zeroed, self.next = room, {}, set(), 0x1000

    def malloc(self, nbytes: int) -> int:
        if nbytes > self.room:
            raise MemoryError("out of device memory")
        self.room -= nbytes
        self.next += 0x1000
        self.live[self.next] = nbytes
        return self.next

    def memset(self, pointer: int, nbytes: int, value: int) -> None:
        assert self.live[pointer] == nbytes
        assert value == 0
        self.zeroed.add(pointer)

    def free(self, pointer: int) -> None:
        del self.live[pointer]
