package lockset.interop;

import java.io.IOException;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.client.codec.StringCodec;

/** What a thread can be asked to do with a lock: {@code id peer thread verb kind name args...}. */
final class Verbs {
    private Verbs() {}

    static Object perform(Peer peer, String[] words) throws IOException, InterruptedException {
        String kind = words[4], name = words[5];
        if (kind.equals("hash")) {
            return new TreeMap<>(peer.redisson.<String, String>getMap(name, StringCodec.INSTANCE).readAllMap());
        }
        if (Synchronizers.has(kind)) {
            return Synchronizers.perform(peer, words);
        }
        RLock lock = peer.lock(kind, name);
        switch (words[3]) {
            case "lock" -> lock.lock();
            case "lock_for" -> lock.lock(Long.parseLong(words[6]), TimeUnit.MILLISECONDS);
            case "lock_interruptibly" -> lock.lockInterruptibly();
            case "try_lock" -> {
                return lock.tryLock();
            }
            case "try_lock_for" -> {
                return lock.tryLock(Long.parseLong(words[6]), TimeUnit.MILLISECONDS);
            }
            case "claim" -> {
                return lock.tryLock(0, Long.parseLong(words[6]), TimeUnit.MILLISECONDS);
            }
            case "unlock" -> lock.unlock();
            case "force_unlock" -> {
                return lock.forceUnlock();
            }
            case "is_locked" -> {
                return lock.isLocked();
            }
            case "is_held" -> {
                return lock.isHeldByCurrentThread();
            }
            case "hold_count" -> {
                return lock.getHoldCount();
            }
            case "remaining" -> {
                return lock.remainTimeToLive();
            }
            case "lock_and_get_token" -> {
                return Versions.call(lock, "lockAndGetToken");
            }
            case "token" -> {
                return Versions.call(lock, "getToken");
            }
            case "holder" -> {
                return peer.redisson.getId() + ":" + Thread.currentThread().getId();
            }
            case "turn" -> {
                lock.lock();
                try {
                    peer.redisson.getList(words[6], StringCodec.INSTANCE).add(words[7]);
                } finally {
                    lock.unlock();
                }
            }
            case "count" -> {
                return Counter.count(lock, words[6], Integer.parseInt(words[7]), Integer.parseInt(words[8]));
            }
            default -> throw new IllegalArgumentException(words[3]);
        }
        return "";
    }
}
