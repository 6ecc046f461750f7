package lockset.peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/** One job: threads that take a lock, work, and give it back, until the time is over. */
final class Job {
    private static final int PERMITS = 8;
    private static final long LEASE_S = 30;

    /** No run counts a latch down so often. */
    private static final long COUNT = 1_000_000_000;

    private final String kind, name;
    private final int tasks, reads;
    private final long nanos, work;
    private final Inside inside;
    private long start;

    /** {@code kind name tasks ms work_us reads}. */
    Job(String[] words) {
        kind = words[0];
        name = words[1];
        tasks = Integer.parseInt(words[2]);
        nanos = Long.parseLong(words[3]) * 1_000_000;
        work = Long.parseLong(words[4]) / 1000;
        reads = Integer.parseInt(words[5]);
        inside = new Inside(kind.equals("permits") ? PERMITS : 0);
    }

    String run(RedissonClient redisson) throws InterruptedException {
        switch (kind) {
            case "permits" -> redisson.getPermitExpirableSemaphore(name).trySetPermits(PERMITS);
            case "latch" -> redisson.getCountDownLatch(name).trySetCount(COUNT);
            default -> {}
        }
        ExecutorService threads = Executors.newFixedThreadPool(tasks);
        try {
            start = System.nanoTime();
            List<Callable<String>> work = new ArrayList<>();
            for (int task = 0; task < tasks; task++) {
                String own = kind.equals("spread") ? name + ":" + task : name;
                work.add(() -> turns(redisson, own));
            }
            var answer = new StringBuilder();
            for (Future<String> turns : threads.invokeAll(work)) {
                answer.append("turns").append(turns.get()).append('\n');
            }
            return answer.append("done 0 ").append(inside.violations()).toString();
        } catch (ExecutionException error) {
            throw new IllegalStateException(error);
        } finally {
            threads.shutdown();
        }
    }

    /** Asked, granted, worked, released, of each turn of one thread. */
    private String turns(RedissonClient redisson, String own) throws InterruptedException {
        return switch (kind) {
            case "permits" -> permits(redisson.getPermitExpirableSemaphore(own));
            case "latch" -> countDowns(redisson.getCountDownLatch(own));
            default -> locks(redisson, own);
        };
    }

    private String locks(RedissonClient redisson, String own) throws InterruptedException {
        RLock exclusive = switch (kind) {
            case "fair" -> redisson.getFairLock(own);
            case "rw" -> redisson.getReadWriteLock(own).writeLock();
            default -> redisson.getLock(own);
        };
        RLock shared = kind.equals("rw") ? redisson.getReadWriteLock(own).readLock() : null;
        var turns = new StringBuilder();
        while (System.nanoTime() - start < nanos) {
            boolean reading = shared != null && ThreadLocalRandom.current().nextInt(100) < reads;
            RLock lock = reading ? shared : exclusive;
            long asked = now(), granted, worked;
            lock.lock();
            try {
                granted = now();
                work(reading);
                worked = now();
            } finally {
                lock.unlock();
            }
            note(turns, asked, granted, worked);
        }
        return turns.toString();
    }

    private String permits(RPermitExpirableSemaphore semaphore) throws InterruptedException {
        var turns = new StringBuilder();
        while (System.nanoTime() - start < nanos) {
            long asked = now();
            String permit = semaphore.acquire(LEASE_S, TimeUnit.SECONDS);
            long granted = now();
            work(true);
            long worked = now();
            semaphore.release(permit);
            note(turns, asked, granted, worked);
        }
        return turns.toString();
    }

    private String countDowns(RCountDownLatch latch) {
        var turns = new StringBuilder();
        while (System.nanoTime() - start < nanos) {
            long asked = now();
            latch.countDown();
            long counted = now();
            note(turns, asked, counted, counted);
        }
        return turns.toString();
    }

    private void work(boolean sharing) throws InterruptedException {
        // On locks of their own all may be inside.
        boolean counts = !kind.equals("spread");
        if (counts) {
            inside.enter(sharing);
        }
        if (work > 0) {
            Thread.sleep(work);
        }
        if (counts) {
            inside.leave(sharing);
        }
    }

    private void note(StringBuilder turns, long asked, long granted, long worked) {
        turns.append(' ').append(asked).append(',').append(granted);
        turns.append(',').append(worked).append(',').append(now());
    }

    private long now() {
        return (System.nanoTime() - start) / 1000;
    }
}
