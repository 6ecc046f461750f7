package lockset.interop;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;

/** What a thread can be asked to do with a latch or a semaphore: {@code id peer thread verb kind name number}. */
final class Synchronizers {
    private Synchronizers() {}

    static boolean has(String kind) {
        return kind.equals("latch") || kind.equals("semaphore") || kind.equals("permits");
    }

    static Object perform(Peer peer, String[] words) throws InterruptedException {
        String kind = words[4], name = words[5];
        if (kind.equals("permits")) {
            return onPermits(peer.redisson.getPermitExpirableSemaphore(name), words[3], words.length > 6 ? words[6] : "");
        }
        int number = words.length > 6 ? Integer.parseInt(words[6]) : 1;
        return kind.equals("latch")
                ? onLatch(peer.redisson.getCountDownLatch(name), words[3], number)
                : onSemaphore(peer.redisson.getSemaphore(name), words[3], number);
    }

    private static Object onLatch(RCountDownLatch latch, String verb, int number) throws InterruptedException {
        switch (verb) {
            case "init" -> {
                return latch.trySetCount(number);
            }
            case "count_down" -> latch.countDown();
            case "wait" -> latch.await();
            case "wait_for" -> {
                return latch.await(number, TimeUnit.MILLISECONDS);
            }
            case "left" -> {
                return latch.getCount();
            }
            default -> throw new IllegalArgumentException(verb);
        }
        return "";
    }

    private static Object onPermits(RPermitExpirableSemaphore semaphore, String verb, String word)
            throws InterruptedException {
        return switch (verb) {
            case "init" -> semaphore.trySetPermits(Integer.parseInt(word));
            case "acquire" -> semaphore.acquire();
            case "lease" -> semaphore.acquire(Long.parseLong(word), TimeUnit.MILLISECONDS);
            case "release" -> semaphore.tryRelease(word);
            case "left" -> semaphore.availablePermits();
            default -> throw new IllegalArgumentException(verb);
        };
    }

    private static Object onSemaphore(RSemaphore semaphore, String verb, int number) throws InterruptedException {
        switch (verb) {
            case "init" -> {
                return semaphore.trySetPermits(number);
            }
            case "acquire" -> semaphore.acquire(number);
            case "try_acquire" -> {
                return semaphore.tryAcquire(number);
            }
            case "release" -> semaphore.release(number);
            case "left" -> {
                return semaphore.availablePermits();
            }
            case "delete" -> {
                return semaphore.delete();
            }
            default -> throw new IllegalArgumentException(verb);
        }
        return "";
    }
}
