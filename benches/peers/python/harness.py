"""The harness of redis-py, as its documentation shows it: `with client.lock(name, timeout=..)`, in threads.

Its defaults: a waiter asks every 100 ms, for as long as it takes. Without a timeout a lock would outlive
its holder for ever, so it has one; it is not renewed. It has no fair and no read-write lock. The
protocol is described in benches/peers/README.md.
"""

import platform
import sys
import threading
import time

import redis

LEASE_S = 30


class Job:
    """Threads that take a lock, work, and give it back, until the time is over."""

    def __init__(self, client, kind, name, tasks, ms, work_us, _reads):
        self.client = client
        self.spread = kind == "spread"
        self.name = name
        self.tasks = int(tasks)
        self.time_ns = int(ms) * 1_000_000
        self.work_s = int(work_us) / 1e6
        self.inside = 0
        self.violations = 0

    def run(self):
        logs = [[] for _ in range(self.tasks)]
        threads = [
            threading.Thread(target=self.turns, args=(task, log)) for task, log in enumerate(logs)
        ]
        self.start = time.monotonic_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for log in logs:
            print(" ".join(["turns", *log]))
        say(f"done 0 {self.violations}")

    def turns(self, task, log):
        name = f"{self.name}:{task}" if self.spread else self.name
        while time.monotonic_ns() - self.start < self.time_ns:
            asked = self.now()
            with self.client.lock(name, timeout=LEASE_S):
                granted = self.now()
                self.enter()
                if self.work_s:
                    time.sleep(self.work_s)
                self.inside -= 1
                worked = self.now()
            log.append(f"{asked},{granted},{worked},{self.now()}")

    def enter(self):
        # Who is alone needs no lock to count; who is not has found what is looked for.
        self.inside += 1
        if self.inside > 1 and not self.spread:
            self.violations += 1

    def now(self):
        return (time.monotonic_ns() - self.start) // 1000


def say(answer):
    print(answer, flush=True)


def main():
    host, port = sys.argv[1].split(":")
    client = redis.Redis(host=host, port=int(port))
    say(f"ready redis-py {redis.__version__}, Python {platform.python_version()}")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "hold":
            client.lock(words[1], timeout=int(words[2]) / 1e3).acquire()
            say("held")
        elif words[0] == "wait":
            say("waiting")
            with client.lock(words[1], timeout=int(words[2]) / 1e3):
                say("held")
        elif words[0] == "fair":
            say("lacks no fair lock")
        elif words[0] == "rw":
            say("lacks no read-write lock")
        elif words[0] == "permits":
            say("lacks no semaphore")
        elif words[0] == "latch":
            say("lacks no latch")
        else:
            Job(client, *words).run()


main()
